"""How a request is passed to the engine, and which of the engine's sequences become its choices."""

import asyncio
import time
from typing import Any, cast

import pytest

from orcastream.broker.claimed import Claimed
from orcastream.broker.entry import EntryRef
from orcastream.broker.fold import Fold
from orcastream.broker.reply_log import ReplyLog
from orcastream.engine import Beam, PromptEvent, Request, TokenEvent
from orcastream.schemas.codec import Form
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.schemas.events import Ending, EventId, Output, PromptRun, Run, Started, Terminal
from orcastream.schemas.request import GenerationRequest, parse_payload
from orcastream.schemas.seed import choice_seed
from orcastream.schemas.stopping import FinishReason
from orcastream.text.tokenizer import Tokenizer
from orcastream.worker.constraints import Constraints
from orcastream.worker.engine_loop import EngineLoop, EngineOutput, Refused
from orcastream.worker.outbox import Outbox
from orcastream.worker.publisher import Publisher
from orcastream.worker.roster import Roster
from orcastream.worker.running import Running

EOS = 2
CLAIMED_MS = 1_800_000_000_000
WAITED_MS = 250
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def new_running(tokenizer: Tokenizer | None = None, **payload: Any) -> Running:
    """A newly claimed request: a quarter of a second after its arrival, a minute before its deadline."""
    ref = EntryRef("high", f"{CLAIMED_MS - WAITED_MS}-0")
    request = GenerationRequest("r1", parse_payload({"prompt": [7, 8], **payload}), CLAIMED_MS + 60_000, "high")
    max_tokens = payload.get("max_tokens", 5)
    return Running(
        Claimed(ref, {}, 1),
        request,
        max_tokens=max_tokens,
        tokenizer=tokenizer,
        claimed_ms=CLAIMED_MS,
        constraints=Constraints(None, vocab_size=0, eos_token_ids=()),
    )


def attach(running: Running, logged: list[list[int]] | None = None) -> bool:
    """Attach to a log that contains these tokens."""
    fold = Fold()
    fold.feed(EventId(1, 0), Started("w", "m", "default", "high", "high 1-0", 5, 2, n=running.request.payload.n))
    runs = [Run(index, 0, tuple(tokens)) for index, tokens in enumerate(logged or []) if tokens]
    if runs:
        fold.feed(EventId(1, 1), Output(tuple(runs)))
    return running.attached(ReplyLog(cast(Any, None), "log", 2, Form.JSON), fold, {EOS})


class Stage:
    """One request, and an engine whose output the test scripts."""

    def __init__(self, **options: Any) -> None:
        self.roster = Roster(8)
        self.engine_loop = EngineLoop(cast(Any, None), lambda _: None, max_unpublished=100)
        self.outbox = Outbox(self.roster, Publisher(cast(Any, None), lambda _: None))
        self.running = new_running(**options)
        self.roster.add(self.running)
        self.requests = self.begin()

    def begin(self, logged: list[list[int]] | None = None) -> list[Request]:
        assert attach(self.running, logged)
        self.roster.submitted(self.running)
        return self.running.engine_requests()

    async def say(self, *events: EngineOutput) -> None:
        """One iteration's output."""
        self.outbox.deliver(list(events))
        await asyncio.sleep(0)
        assert self.outbox.take(self.engine_loop) == len(events)

    def terminal(self) -> Terminal:
        event = self.running.next_event()
        assert isinstance(event, Terminal)
        return event


def token(request: Request, position: int, token: int, logprob: float, reason: FinishReason | None = None) -> Any:
    return TokenEvent(request.id, position, token, reason, logprobs=[logprob, []])


def test_the_engine_gets_the_fields_that_policies_use() -> None:
    running = new_running(
        tenant="blue", cache_salt="pepper", ttft_slo_ms=1000, tbt_slo_ms=50, temperature=0, max_tokens=5
    )
    attach(running)
    before_s = time.monotonic()
    (request,) = running.engine_requests()
    assert (request.priority_class, request.tenant, request.cache_salt) == ("high", "blue", "pepper")
    assert (request.tbt_slo_ms, request.group, request.beam) == (50, None, None)
    assert request.deadline_s is not None
    assert before_s + 59 < request.deadline_s <= time.monotonic() + 60
    assert request.ttft_slo_ms is not None
    assert 1 <= request.ttft_slo_ms <= 1000 - WAITED_MS, "the time in the queue is deducted"
    assert request.waited_s == pytest.approx(1 - request.ttft_slo_ms / 1000)


def test_a_target_missed_in_the_queue_becomes_the_shortest_one() -> None:
    running = new_running(ttft_slo_ms=WAITED_MS / 2)
    attach(running)
    assert [request.ttft_slo_ms for request in running.engine_requests()] == [1]


async def test_a_prompt_with_log_probabilities_alone_does_not_fail_with_the_token_after_it() -> None:
    stage = Stage(max_tokens=0, prompt_logprobs=0, temperature=1.0, logit_bias=[[5, -100]])
    (request,) = stage.requests
    assert request.sampling.temperature == 0
    assert not request.sampling.logit_bias
    failed = TokenEvent(request.id, 0, None, None, error="no finite score")
    await stage.say(PromptEvent(request.id, 0, (None, [-1.0, []]), (None, 1)), failed)
    assert stage.running.error is None
    told = stage.running.next_event()
    assert isinstance(told, PromptRun)
    stage.running.logged(told)
    assert stage.terminal().endings == (Ending(LENGTH, 0),)


def test_choices_of_one_prompt_are_a_group_of_their_attempt() -> None:
    running = new_running(n=3, seed=5)
    attach(running)
    requests = running.engine_requests()
    assert len({request.group for request in requests}) == 1
    assert requests[0].group is not None
    assert [request.seed for request in requests] == [choice_seed(5, index) for index in range(3)]
    assert all(request.sampling.logprobs is None for request in requests)
    assert attach(running, [[1], [1, EOS], []]), "the log differs: another attempt"
    again = running.engine_requests()
    assert [(request.seed, request.output_ids) for request in again] == [
        (choice_seed(5, 0), [1]),
        (choice_seed(5, 2), []),
    ]
    assert again[0].group not in (None, requests[0].group)
    assert not {request.id for request in requests} & {request.id for request in again}


async def test_the_best_samples_are_the_choices_and_come_at_the_end() -> None:
    stage = Stage(n=2, best_of=4, seed=5)
    requests = stage.requests
    assert [request.seed for request in requests] == [choice_seed(5, index) for index in range(4)]
    assert [request.sampling.logprobs for request in requests] == [0] * 4
    await stage.say(*(token(request, 0, 10 + index, -1.0) for index, request in enumerate(requests)))
    assert stage.running.next_event() is None
    await stage.say(
        token(requests[0], 1, EOS, -3.0, STOP),  # mean -2
        token(requests[1], 1, EOS, -0.5, STOP),  # mean -0.75
        token(requests[2], 1, 30, -0.6),
    )
    await stage.say(token(requests[2], 2, EOS, -0.5, STOP))  # mean -0.7, although its sum is lower
    assert stage.running.next_event() is None
    assert not stage.running.ended
    await stage.say(token(requests[3], 1, EOS, -2.0, STOP))
    terminal = stage.terminal()
    assert terminal.runs == (Run(0, 0, (12, 30, EOS)), Run(1, 0, (11, EOS)))
    assert terminal.endings == (Ending(STOP, 3), Ending(STOP, 2))
    assert terminal.error is None
    assert (terminal.usage.prompt_tokens, terminal.usage.completion_tokens) == (2, 5)
    assert stage.running.logged(terminal)


async def test_log_probabilities_are_published_if_requested() -> None:
    stage = Stage(best_of=2, logprobs=3)
    assert [request.sampling.logprobs for request in stage.requests] == [3, 3]
    await stage.say(*(token(one, 0, 9, -1.0 + index / 2, LENGTH) for index, one in enumerate(stage.requests)))
    assert stage.terminal().runs == (Run(0, 0, (9,), ([-0.5, []],)),)


async def test_equal_samples_keep_the_order_of_their_seeds() -> None:
    stage = Stage(n=2, best_of=3)
    await stage.say(*(token(one, 0, index, -1.0, STOP) for index, one in reversed([*enumerate(stage.requests)])))
    assert [run.tokens for run in stage.terminal().runs] == [(0,), (1,)]


async def test_a_stop_string_ends_a_hidden_candidate(tokenizer: Tokenizer) -> None:
    stage = Stage(best_of=2, stop=["stop"], tokenizer=tokenizer)
    ids = tokenizer.encode("ab stop")
    first, second = stage.requests
    await stage.say(token(second, 0, ids[0], -9.0, LENGTH))
    for position, one in enumerate(ids):
        assert stage.running.next_event() is None
        await stage.say(token(first, position, one, -1.0))
    assert stage.engine_loop._cancelled == [first.id]
    terminal = stage.terminal()
    assert terminal.endings == (Ending(STOP, len(ids), text_length=3, stop="stop"),)


async def test_hypotheses_become_choices_in_their_order() -> None:
    """The engine returns them all in one iteration, choice by choice, under the id of the one request."""
    stage = Stage(n=2, best_of=4, use_beam_search=True, length_penalty=0.5, early_stopping=True)
    (request,) = stage.requests
    assert request.beam == Beam(width=4, num_return=2, length_penalty=0.5, early_stopping=True)
    assert (request.group, request.sampling.temperature) == (None, 0)
    await stage.say(
        TokenEvent(request.id, 0, 10, cached_tokens=1),
        TokenEvent(request.id, 1, EOS, STOP, cached_tokens=1),
        TokenEvent(request.id, 0, 20, choice=1),
        TokenEvent(request.id, 1, 21, choice=1),
        TokenEvent(request.id, 2, 22, LENGTH, choice=1),
    )
    terminal = stage.terminal()
    assert terminal.runs == (Run(0, 0, (10, EOS)), Run(1, 0, (20, 21, 22)))
    assert terminal.endings == (Ending(STOP, 2), Ending(LENGTH, 3))
    assert (terminal.usage.completion_tokens, terminal.usage.cached_tokens) == (5, 1)


async def test_an_incomplete_beam_search_publishes_nothing() -> None:
    stage = Stage(n=2, use_beam_search=True)
    (request,) = stage.requests
    await stage.say(TokenEvent(request.id, 0, 10, STOP))
    assert stage.running.next_event() is None
    assert not stage.running.ended


async def test_a_beam_search_that_the_engine_refuses_or_fails() -> None:
    stage = Stage(use_beam_search=True)
    (request,) = stage.requests
    await stage.say(Refused(request.id, InvalidRequest("beam_width", 4, "at most 2")))
    terminal = stage.terminal()
    assert (terminal.error, terminal.field_name) == (ErrorCode.INVALID_REQUEST, "best_of")
    assert terminal.message == "best_of: got 4, allowed: at most 2"
    stage = Stage(use_beam_search=True)
    await stage.say(TokenEvent(stage.requests[0].id, 0, None, error="no finite score"))
    assert stage.terminal().error is ErrorCode.ENGINE_ERROR


@pytest.mark.parametrize("options", [{"n": 2, "best_of": 3}, {"n": 2, "use_beam_search": True}])
async def test_an_early_end_shows_no_candidate(options: dict[str, Any]) -> None:
    stage = Stage(**options)
    await stage.say(token(stage.requests[0], 0, 10, -1.0, STOP))
    stage.running.fail(ErrorCode.CANCELLED, "cancelled")
    await stage.say(*(token(one, 0, 11, -1.0, STOP) for one in stage.requests))
    terminal = stage.terminal()
    assert (terminal.error, terminal.runs) == (ErrorCode.CANCELLED, ())
    assert terminal.endings == (Ending(None, 0), Ending(None, 0))
    assert terminal.usage.completion_tokens == 0


async def test_a_new_connection_does_not_disturb_candidates() -> None:
    """The log holds no candidate tokens, so any engine output extends it, both before the end and after it."""
    stage = Stage(n=1, best_of=2)
    first, second = stage.requests
    await stage.say(token(first, 0, 10, -1.0, STOP))
    assert not attach(stage.running)
    await stage.say(token(second, 0, 11, -0.5, STOP))
    assert not attach(stage.running)
    assert stage.terminal().runs == (Run(0, 0, (11,)),)


@pytest.mark.parametrize("options", [{"best_of": 2}, {"use_beam_search": True}])
async def test_a_log_that_shows_tokens_before_the_end_is_not_continued(options: dict[str, Any]) -> None:
    """No writer that follows the protocol wrote them; they are final, and no best candidate begins with them."""
    running = new_running(**options)
    attach(running, [[5, 6]])
    assert running.ended
    terminal = running.next_event()
    assert isinstance(terminal, Terminal)
    assert (terminal.error, terminal.runs, terminal.endings) == (ErrorCode.ENGINE_ERROR, (), (Ending(None, 2),))


async def test_cached_tokens_count_the_first_choice() -> None:
    """The other choices may reuse blocks that the first one computed; that saves no prompt computation."""
    stage = Stage(n=2)
    first, second = stage.requests
    await stage.say(TokenEvent(second.id, 0, 9, LENGTH, cached_tokens=2))
    await stage.say(TokenEvent(first.id, 0, 9, cached_tokens=1), TokenEvent(first.id, 1, 9, LENGTH))
    assert stage.terminal().usage.cached_tokens == 1


def test_every_candidate_takes_a_slot() -> None:
    roster = Roster(8)
    roster.add(new_running(n=2, best_of=5))
    assert roster.free == 3
