"""The writes of a request with prompt log probabilities: no answer tokens before the whole prompt, however it ends."""

from typing import Any, cast

import pytest

from orcastream.broker.fold import Fold
from orcastream.engine import PromptEvent, Request, TokenEvent
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Ending, EventId, PromptRun, Run
from orcastream.schemas.limits import MAX_PROMPT_LOGPROBS_IN_EVENT
from orcastream.schemas.stopping import FinishReason
from orcastream.worker.isolation import Isolation
from orcastream.worker.keeper import Keeper
from tests.worker.own_settings import own_settings
from tests.worker.test_candidates import Stage

LENGTH = FinishReason.LENGTH
PROMPT = [5, 6, 7]
IN_PIECES = [5] * (MAX_PROMPT_LOGPROBS_IN_EVENT // 2 + 1)
"""One token more than an event holds with `prompt_logprobs` 1."""


def asking(prompt: list[int] | None = None, **options: Any) -> Stage:
    return Stage(prompt=prompt or PROMPT, prompt_logprobs=1, **options)


def told(request: Request, begin: int, end: int) -> PromptEvent:
    """The token at a position has that position as its rank."""
    items = tuple(None if not place else [-1.0, []] for place in range(begin, end))
    return PromptEvent(request.id, begin, items, tuple(place or None for place in range(begin, end)))


def token(request: Request, reason: FinishReason | None = None) -> TokenEvent:
    return TokenEvent(request.id, 0, 9, reason, logprobs=[-1.0, []])


def write_all(stage: Stage) -> Fold:
    """Write until nothing is left, and return what a reader then has. Gap is what a reader cannot have."""
    fold, running = Fold(), stage.running
    fold.feed(EventId(2, 0), running.started("w", "m"))
    index = 0
    while fold.terminal is None and (event := running.next_event()) is not None:
        index += 1
        fold.feed(EventId(2, index), event)
        running.logged(event)
    return fold


@pytest.mark.parametrize("num_told", [0, 2, 3])
@pytest.mark.parametrize("options", [{}, {"n": 2}, {"best_of": 2}, {"max_tokens": 0, "n": 2}])
async def test_an_error_before_the_whole_prompt_is_written_has_no_tokens(
    num_told: int, options: dict[str, Any]
) -> None:
    stage = asking(**options)
    if num_told:
        await stage.say(told(stage.requests[0], 0, num_told))
    await stage.say(*(token(request, LENGTH) for request in stage.requests))
    stage.running.fail(ErrorCode.CANCELLED, "cancelled")
    fold = write_all(stage)
    n = options.get("n", 1)
    assert fold.tokens == [[]] * n
    assert fold.terminal is not None
    assert fold.terminal.error is ErrorCode.CANCELLED
    assert (fold.terminal.endings, fold.terminal.usage.completion_tokens) == ((Ending(None, 0),) * n, 0)


async def test_an_error_after_the_prompt_has_the_tokens_so_far() -> None:
    stage = asking()
    (request,) = stage.requests
    await stage.say(told(request, 0, 3), token(request))
    event = stage.running.next_event()
    assert isinstance(event, PromptRun)
    stage.running.logged(event)
    stage.running.fail(ErrorCode.CANCELLED, "cancelled")
    terminal = stage.terminal()
    assert (terminal.runs, terminal.endings) == ((Run(0, 0, (9,)),), (Ending(None, 1),))


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_pieces_that_wait_do_not_miss_the_deadline(max_tokens: int) -> None:
    """A fully computed answer is written, as for any other request; an incomplete one is overdue."""
    stage = asking(IN_PIECES, max_tokens=max_tokens)
    (request,) = stage.requests
    settings = own_settings()
    keeper = Keeper(settings, stage.engine_loop, stage.roster, cast(Any, None))
    overdue_ms = stage.running.request.deadline_ms
    assert keeper.expired(overdue_ms - 1) == []
    await stage.say(told(request, 0, len(IN_PIECES) - 1))
    assert keeper.expired(overdue_ms) == [stage.running]
    await stage.say(told(request, len(IN_PIECES) - 1, len(IN_PIECES)), token(request, LENGTH))
    assert not stage.running.ended
    assert keeper.expired(overdue_ms) == []
    fold = write_all(stage)
    assert fold.prompt_told == len(IN_PIECES)
    assert fold.terminal is not None
    assert (fold.terminal.error, fold.terminal.endings) == (None, (Ending(LENGTH, max_tokens),))


async def test_a_suspect_runs_alone_until_it_has_written_something_new() -> None:
    stage = asking()
    isolation = Isolation(stage.engine_loop)
    isolation.add(stage.running)
    assert await isolation.next() is stage.running
    isolation.look()
    assert isolation.current is stage.running
    await stage.say(told(stage.requests[0], 0, 1))
    stage.running.log = cast(Any, object())
    isolation.look()
    assert isolation.current is stage.running, "another request may end the worker before it is written"
    event = stage.running.next_event()
    assert event is not None
    stage.running.logged(event)
    isolation.look()
    assert (isolation.current, stage.running.ended) == (None, False)


async def test_pieces_written_before_do_not_count_as_new() -> None:
    stage = asking()
    (request,) = stage.requests
    await stage.say(told(request, 0, 2))
    stage.running.brought = False
    await stage.say(told(request, 0, 2))
    assert not stage.running.brought
    await stage.say(told(request, 0, 3))
    assert stage.running.brought


async def test_each_token_has_its_rank_however_the_pieces_are_cut() -> None:
    stage = asking(IN_PIECES)
    (request,) = stage.requests
    await stage.say(told(request, 0, 100))
    await stage.say(told(request, 50, len(IN_PIECES)))
    ranks: list[int | None] = []
    for size in (len(IN_PIECES) - 1, 1):
        event = stage.running.next_event()
        assert isinstance(event, PromptRun)
        assert event.ranks is not None
        assert len(event.ranks) == len(event.tokens) == size
        ranks += event.ranks
        stage.running.logged(event)
    assert ranks == [None, *range(1, len(IN_PIECES))]
