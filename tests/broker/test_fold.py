"""Folding by positions, and the resume id."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.broker.errors import Gap, ReplyConflict
from orcastream.broker.fold import Fold, decode_entry, fold_log
from orcastream.broker.resume import ResumePoint, Resumption
from orcastream.schemas.codec import Form
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.schemas.events import (
    Ending,
    Event,
    EventId,
    Output,
    PromptRun,
    Run,
    Started,
    Terminal,
    Usage,
    encode_event,
)
from orcastream.schemas.stopping import FinishReason

STARTED = Started("w1", "demo", "default", "normal", "normal 1-1", 7, 3, 2)


def folded(*events: Event) -> Fold:
    fold = Fold()
    for index, event in enumerate(events):
        fold.feed(EventId(5, index), event)
    return fold


def tokens(position: int, *values: int, choice: int = 0) -> Output:
    return Output((Run(choice, position, values),))


def terminal(*counts: int) -> Terminal:
    return Terminal(tuple(Ending(FinishReason.STOP, count) for count in counts), Usage(3, sum(counts)))


def raw(epoch: int, index: int, event: Event) -> list[object]:
    flat = [part if isinstance(part, bytes) else part.encode() for part in encode_event(event, Form.MSGPACK)]
    return [f"{epoch}-{index}".encode(), flat]


def test_runs_are_appended_and_overlaps_compared() -> None:
    fold = folded(STARTED, tokens(0, 1, 2))
    assert fold.feed(EventId(6, 1), Output((Run(0, 1, (2, 3, 4), ("a", "b", "c")),))) == [Run(0, 2, (3, 4), ("b", "c"))]
    assert fold.feed(EventId(6, 2), tokens(0, 1, 2)) == []
    assert fold.tokens == [[1, 2, 3, 4], []]


def test_a_different_token_is_a_conflict_and_changes_nothing() -> None:
    fold = folded(STARTED, tokens(0, 1, 2))
    with pytest.raises(ReplyConflict, match="choice 0, token 1: 2 was delivered, the log now says 9"):
        fold.feed(EventId(6, 1), Output((Run(1, 0, (5,)), Run(0, 1, (9,)))))
    assert fold.tokens == [[1, 2], []]


def test_a_gap_changes_nothing() -> None:
    fold = folded(STARTED, tokens(0, 1))
    with pytest.raises(Gap) as caught:
        fold.feed(EventId(6, 1), Output((Run(1, 0, (5,)), Run(0, 2, (9,)))))
    assert (caught.value.choice, caught.value.expected, caught.value.found) == (0, 1, 2)
    assert fold.tokens == [[1], []]


def test_two_runs_of_one_choice_in_one_event() -> None:
    assert folded(STARTED, Output((Run(0, 0, (1,)), Run(0, 1, (2,))))).tokens[0] == [1, 2]


def test_a_terminal_that_counts_more_is_a_gap_and_fewer_a_conflict() -> None:
    fold = folded(STARTED, tokens(0, 1, 2))
    with pytest.raises(Gap):
        fold.feed(EventId(5, 9), terminal(3, 0))
    with pytest.raises(ReplyConflict):
        fold.feed(EventId(5, 9), terminal(1, 0))
    assert fold.terminal is None
    assert fold.feed(EventId(5, 9), replace(terminal(3, 1), runs=(Run(0, 2, (3,)), Run(1, 0, (4,))))) != []


def test_nothing_counts_after_the_first_terminal() -> None:
    fold = folded(STARTED, tokens(0, 1), terminal(1, 0))
    assert fold.feed(EventId(6, 0), replace(STARTED, worker="w2")) == []
    assert fold.feed(EventId(6, 1), tokens(0, 99)) == []
    assert fold.started is STARTED


def test_progress_is_counted_back_from_the_current_epoch() -> None:
    fold, counts = Fold(), []
    for epoch, brings in enumerate([None, None, tokens(0, 1), tokens(0, 1), None]):
        fold.feed(EventId(epoch, 0), STARTED)
        counts.append(fold.epochs_without_progress)
        if brings is not None:
            fold.feed(EventId(epoch, 1), brings)
    assert counts == [0, 1, 2, 0, 1]


def test_the_first_seed_is_kept() -> None:
    fold = folded(STARTED, replace(STARTED, seed=8))
    assert (fold.first_seed, fold.started) == (7, replace(STARTED, seed=8))
    assert fold.previous_started == STARTED


ASKING = replace(STARTED, prompt_logprobs=1)


def prompt(position: int, *values: int) -> PromptRun:
    places = range(position, position + len(values))
    return PromptRun(position, values, tuple(None if place == 0 else [-1.0, []] for place in places))


def test_prompt_tokens_are_folded_by_position_and_before_all_output() -> None:
    fold = folded(ASKING, prompt(0, 7), prompt(1, 8))
    assert fold.feed(EventId(6, 0), ASKING) == []
    assert fold.feed(EventId(6, 1), prompt(0, 7, 8)) == []
    assert (fold.prompt_told, fold.prompt_expected) == (2, 3)
    for event in (tokens(0, 1), terminal(0, 0)):
        with pytest.raises(Gap, match=r"^the prompt: the log continues at token 3, expected 2$"):
            fold.feed(EventId(6, 2), event)
    with pytest.raises(Gap) as caught:
        fold.feed(EventId(6, 2), prompt(3, 9))
    assert (caught.value.choice, caught.value.expected, caught.value.found) == (None, 2, 3)
    fold.feed(EventId(6, 3), prompt(2, 9))
    assert fold.feed(EventId(6, 4), tokens(0, 1)) == [Run(0, 0, (1,))]
    assert (fold.prompt_told, fold.last_id) == (3, EventId(6, 4))


def test_an_error_ends_an_incomplete_prompt() -> None:
    error = Terminal((Ending(None, 0), Ending(None, 0)), Usage(3, 0), error=ErrorCode.CANCELLED)
    assert folded(ASKING, prompt(0, 7), error).terminal == error


def test_new_prompt_tokens_are_progress() -> None:
    fold, counts = Fold(), []
    for epoch, brings in enumerate([None, None, prompt(0, 7), prompt(0, 7), None]):
        fold.feed(EventId(epoch, 0), ASKING)
        counts.append(fold.epochs_without_progress)
        if brings is not None:
            fold.feed(EventId(epoch, 1), brings)
    assert counts == [0, 1, 2, 0, 1]


def test_tokens_after_a_gap_in_the_prompt_do_not_count() -> None:
    entries = [raw(1, 0, ASKING), raw(1, 1, prompt(0, 7)), raw(1, 3, tokens(0, 5)), raw(2, 0, ASKING)]
    fold = fold_log(entries)
    assert (fold.prompt_told, fold.tokens) == (1, [[], []])


def test_folding_a_whole_log_ignores_gaps_conflicts_and_garbage() -> None:
    entries: list[Any] = [
        raw(1, 0, STARTED),
        raw(1, 1, tokens(0, 1, 2)),
        [b"1-2", [b"type", b"tokens", b"payload", b"\xc1"]],
        [b"1-3", [b"something", b"else"]],
        raw(1, 4, tokens(5, 9)),
        raw(1, 5, tokens(1, 7)),
        raw(1, 6, Output((Run(10**9, 0, (1,)),))),
        raw(2, 0, STARTED),
        raw(2, 1, tokens(2, 3)),
    ]
    fold = fold_log(entries)
    assert (fold.tokens, fold.terminal) == ([[1, 2, 3], []], None)
    assert fold_log([*entries, raw(2, 2, terminal(9, 0))]).terminal is not None
    assert decode_entry(entries[2]) is None


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.integers() | st.floats() | st.text(st.characters(), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
SMALL = st.integers(0, 3)


def mostly(right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A value of the right type in nine of ten cases."""
    return st.integers(0, 9).flatmap(lambda dice: right if dice else ANY)


RUN = st.fixed_dictionaries(
    {"choice": mostly(SMALL), "position": mostly(SMALL), "tokens": mostly(st.lists(mostly(SMALL), max_size=3))},
    optional={"logprobs": ANY},
)
USAGE = st.fixed_dictionaries({"prompt_tokens": mostly(SMALL), "completion_tokens": mostly(SMALL)})
ENDING = st.fixed_dictionaries(
    {"tokens": mostly(SMALL)},
    optional={"finish_reason": mostly(st.sampled_from(FinishReason)), "text_length": ANY, "stop": ANY},
)
OUTPUT = mostly(st.lists(mostly(RUN), max_size=2))
END = {"output": OUTPUT, "choices": mostly(st.lists(mostly(ENDING), max_size=2)), "usage": mostly(USAGE)}
WIRES = {
    "started": st.fixed_dictionaries(
        {
            **{name: mostly(st.text(max_size=3)) for name in ("worker", "model", "tenant", "class", "entry")},
            **{name: mostly(SMALL) for name in ("seed", "prompt_tokens", "n")},
        },
        optional={"traceparent": ANY, "prompt_logprobs": mostly(SMALL)},
    ),
    "prompt": st.fixed_dictionaries(
        {
            "position": mostly(SMALL),
            "tokens": mostly(st.lists(mostly(SMALL), max_size=3)),
            "logprobs": mostly(st.lists(st.none() | st.just([-1.0, []]), max_size=3)),
        },
        optional={"ranks": mostly(st.lists(st.none() | SMALL, max_size=3))},
    ),
    "tokens": st.fixed_dictionaries({"output": OUTPUT}),
    "finished": st.fixed_dictionaries({**END, "timings": mostly(st.dictionaries(st.text(max_size=3), ANY))}),
    "error": st.fixed_dictionaries(
        {
            **END,
            "timings": mostly(st.just({})),
            "error": mostly(st.fixed_dictionaries({"code": mostly(st.sampled_from(ErrorCode)), "message": ANY})),
        }
    ),
}
KINDS_AND_WIRES = st.sampled_from(sorted(WIRES)).flatmap(lambda kind: st.tuples(st.just(kind), mostly(WIRES[kind])))


@given(st.lists(KINDS_AND_WIRES, max_size=6))
def test_any_log_can_be_folded(entries: list[tuple[str, Any]]) -> None:
    """An entry is an event whose values all have the right type, or it is no event."""
    log = [
        [f"5-{index}".encode(), [b"type", kind.encode(), b"payload", json.dumps(wire).encode()]]
        for index, (kind, wire) in enumerate(entries)
    ]
    fold = Fold()
    for entry in log:
        decoded = decode_entry(entry)
        if decoded is None:
            continue
        if isinstance(decoded[1], Started):  # rewritten by the process that ends the request
            for form in Form:
                encode_event(decoded[1], form)
        with suppress(Gap, ReplyConflict):
            fold.feed(*decoded)
        if isinstance(decoded[1], Terminal):
            assert decoded[1].outcome
    ResumePoint.parse(resume_id(fold_log(log)) if fold_log(log).tokens else "0-00000000")


def resume_id(fold: Fold) -> str:
    return str(ResumePoint.of(*fold.progress()))


def test_resume_ids() -> None:
    fold = folded(STARTED, tokens(0, 1, 2, 3), tokens(0, 4, choice=1))
    assert resume_id(fold).startswith("3,1-")
    assert resume_id(folded(STARTED, tokens(0, 1, 2))).startswith("2,0-")


@pytest.mark.parametrize("early", [[[1, 2], []], [[1, 2, 3], [4]], [[], []]])
def test_a_resumption_compares_tokens_however_they_are_cut(early: list[list[int]]) -> None:
    resumption = Resumption(ResumePoint.of_tokens(early))
    whole = [Run(1, 0, (4,)), Run(0, 0, (1,)), Run(0, 1, (2, 3))]
    caught_up = None
    for run in whole:
        caught_up = caught_up or resumption.take([run], has_finished=False)
    assert caught_up is not None
    assert caught_up.delivered == early


def test_a_resumption_of_other_tokens_is_a_conflict() -> None:
    point = ResumePoint.of_tokens([[1, 9]])
    with pytest.raises(ReplyConflict, match="not what the log says"):
        Resumption(point).take([Run(0, 0, (1, 2, 3))], has_finished=False)
    assert Resumption(point).take([Run(0, 0, (1,))], has_finished=False) is None
    with pytest.raises(ReplyConflict, match="ended before"):
        Resumption(point).take([Run(0, 0, (1,))], has_finished=True)


@pytest.mark.parametrize(
    "text", ["", "3", "3-", "a-00000000", "3-xyz", "3,-00000000", ",".join("1" * 17) + "-00000000"]
)
def test_invalid_resume_ids(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Last-Event-ID"):
        ResumePoint.parse(text)


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=20), min_size=1, max_size=3), st.randoms())
def test_the_resume_id_is_a_function_of_the_tokens_alone(choices: list[list[int]], dice: object) -> None:
    """The resume id ignores how tokens were cut into events, and repeats among them."""
    fold, done, index = Fold(), [0] * len(choices), 0
    fold.feed(EventId(1, 0), replace(STARTED, n=len(choices)))
    while done != [len(choice) for choice in choices]:
        choice = dice.randrange(len(choices))  # type: ignore[attr-defined]
        begin = dice.randint(0, done[choice])  # type: ignore[attr-defined]
        end = min(len(choices[choice]), done[choice] + dice.randint(0, 3))  # type: ignore[attr-defined]
        index += 1
        fold.feed(EventId(1, index), tokens(begin, *choices[choice][begin:end], choice=choice))
        done[choice] = end
    assert fold.tokens == choices
    assert resume_id(fold) == str(ResumePoint.of_tokens(choices))
    assert ResumePoint.parse(resume_id(fold)) == ResumePoint.of(*fold.progress())
