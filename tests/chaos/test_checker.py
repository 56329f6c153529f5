"""The checker alone, on handmade records: correct records pass, and each kind of violation is reported by name."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from tests.chaos.catalogue import Answer
from tests.chaos.checker import Checker, Findings, Undisturbed
from tests.chaos.faults import FAULTS
from tests.chaos.folded import fold
from tests.chaos.injector import Fault, plan
from tests.chaos.leaks import find_leaks
from tests.chaos.losses import Loss
from tests.chaos.record import Log, Seen
from tests.chaos.resources import Sample
from tests.chaos.wire import LogEntry

ANSWER = [5, 6, 7, 8]
PAYLOAD = {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True}


def entry(entry_id: str, kind: str, *runs: tuple[int, list[int]], **more: Any) -> LogEntry:
    """Return an entry whose runs, of choice 0, are (position, tokens)."""
    output = [{"choice": 0, "position": position, "tokens": tokens} for position, tokens in runs]
    return LogEntry(entry_id, kind, {"output": output, **more})


def usage(tokens: int) -> dict[str, int]:
    """Return the token counts of an answer."""
    return {"prompt_tokens": 3, "completion_tokens": tokens, "cached_tokens": 0}


def finished(
    entry_id: str, tokens: int, *runs: tuple[int, list[int]], reason: str = "length", counted: int | None = None
) -> LogEntry:
    """Return the end of an answer with one choice; `counted`: tokens in its usage, if other than `tokens`."""
    choices = [{"finish_reason": reason, "tokens": tokens}]
    return entry(entry_id, "finished", *runs, choices=choices, usage=usage(tokens if counted is None else counted))


def told(entry_id: str, kind: str, position: int = 0) -> LogEntry:
    """Return the start of an answer with log probabilities of a prompt of three tokens, or those of two tokens."""
    if kind == "started":
        return LogEntry(entry_id, kind, {"prompt_tokens": 3, "prompt_logprobs": 0})
    return LogEntry(entry_id, kind, {"position": position, "tokens": [1, 2], "logprobs": [[-1.0, []], [-2.0, []]]})


def failed(entry_id: str, tokens: int, code: str) -> LogEntry:
    """Return an early end."""
    error = {"code": code, "message": "so it is"}
    return entry(entry_id, "error", choices=[{"tokens": tokens}], error=error, usage=usage(tokens))


STARTED = entry("1-0", "started")
WHOLE = (STARTED, entry("1-1", "tokens", (0, [5, 6])), finished("1-2", 4, (2, [7, 8])))


def check(
    entries: Sequence[LogEntry],
    *,
    tokens: list[int] | None = None,
    text: str | None = None,
    ended: str = "finished",
    allowed: Sequence[str] = ("finished",),
    cancelled_after: int | None = None,
    faults: Sequence[Fault] = (),
    posted_again: bool = False,
    losses: Sequence[Loss] = (),
) -> Findings:
    """Check one request whose log holds `entries`, which arrived a second apart, and whose client saw what is given."""
    behaviour = "stay" if text is not None else "redis"
    seen = Seen("r", behaviour, PAYLOAD, frozenset(allowed), question=0, posted_at=0.0, accepted_at=0.0, ended=ended)
    seen.tokens = {0: ANSWER if tokens is None else tokens}
    seen.texts = {0: text or ""}
    seen.finish_reasons, seen.usage = {0: "length"}, usage(4)
    seen.posted_again = posted_again
    if cancelled_after is not None:
        seen.cancelled_at, seen.events_at_cancel = cancelled_after + 0.5, cancelled_after + 1
    times = [float(number) for number in range(len(entries))]
    checker = Checker(
        Undisturbed([Answer([ANSWER])], lambda ids: "".join(f"{one} " for one in ids)), faults, losses=losses
    )
    checker.check(seen, Log(list(entries), times, list(entries)))
    return checker.findings


def kinds(findings: Findings) -> set[str]:
    """Return the kinds of violations found."""
    return {one.kind for one in findings.violations}


def test_an_entry_removed_without_an_end_is_reported_although_its_producer_helps() -> None:
    assert kinds(check(WHOLE, posted_again=True)) == {"missing_terminal"}
    assert kinds(check(WHOLE, posted_again=True, losses=[Loss(0.5, 1.0)])) == set()


def test_a_correct_answer_passes() -> None:
    assert not check(WHOLE).violations
    assert not check(WHOLE, text="5 6 7 8 ").violations


def test_a_takeover_that_continues_at_the_end_of_the_log_passes() -> None:
    log = [*WHOLE[:2], entry("2-0", "started"), finished("2-1", 4, (2, [7, 8]))]
    assert not check(log).violations


@pytest.mark.parametrize(
    ("entries", "kind"),
    [
        ([STARTED, entry("1-1", "tokens", (1, [6])), finished("1-2", 4, (0, ANSWER))], "lost"),
        ([*WHOLE[:2], entry("2-0", "started"), finished("2-1", 4, (1, [6, 7, 8]))], "repeated"),
        ([*WHOLE[:2], entry("2-0", "started"), finished("2-1", 4, (1, [9, 7, 8]))], "changed"),
        ([STARTED, finished("1-1", 4, (0, [5, 6, 9, 8]))], "changed"),
        (WHOLE[:2], "missing_terminal"),
        ([], "missing_terminal"),
        ([*WHOLE, finished("2-1", 4)], "double_terminal"),
        ([*WHOLE, entry("1-3", "tokens", (4, [9]))], "repeated"),
        ([*WHOLE[:2], finished("1-2", 4)], "lost"),
        ([STARTED, finished("1-2", 4, (0, ANSWER))], "lost"),
        (WHOLE[1:], "lost"),
        ([STARTED, finished("1-1", 4, (0, ANSWER), counted=5)], "changed"),
        ([STARTED, finished("1-1", 4, (0, ANSWER), reason="stop")], "changed"),
        ([STARTED, finished("1-1", 3, (0, ANSWER[:3]))], "changed"),
        ([told("1-0", "started"), told("1-1", "prompt", 0), finished("1-2", 4, (0, ANSWER))], "lost"),
        ([told("1-0", "started"), told("1-1", "prompt", 0), told("1-2", "prompt", 1)], "repeated"),
        ([told("1-0", "started"), told("1-1", "prompt", 1)], "lost"),
    ],
)
def test_a_wrong_log_is_reported(entries: Sequence[LogEntry], kind: str) -> None:
    assert kind in kinds(check(entries))


@pytest.mark.parametrize(
    ("text", "kind"),
    [("5 6 7 ", "lost"), ("5 6 6 7 8 ", "repeated"), ("5 6 8 7 ", "changed")],
)
def test_a_client_that_read_something_else_is_reported(text: str, kind: str) -> None:
    assert kinds(check(WHOLE, text=text)) == {kind}


@pytest.mark.parametrize(
    ("reasons", "counted", "num_logprobs", "kind"),
    [
        ({0: "length"}, 4, {0: 4}, None),
        ({0: "stop"}, 4, {0: 4}, "changed"),
        ({}, 4, {0: 4}, "changed"),
        ({0: "length"}, 5, {0: 4}, "changed"),
        ({0: "length"}, 4, {0: 5}, "changed"),
        ({0: "length"}, 4, {}, "changed"),
    ],
)
def test_a_client_that_was_told_another_end_is_reported(
    reasons: dict[int, str], counted: int, num_logprobs: dict[int, int], kind: str | None
) -> None:
    seen = Seen("r", "stay", PAYLOAD | {"logprobs": 0}, frozenset({"finished"}), accepted_at=0.0, ended="finished")
    seen.texts, seen.finish_reasons, seen.usage = {0: "5 6 7 8 "}, reasons, usage(counted)
    seen.num_logprobs = num_logprobs
    checker = Checker(Undisturbed([], lambda ids: "".join(f"{one} " for one in ids)), [])
    checker.check(seen, Log([], [], list(WHOLE)))
    assert kinds(checker.findings) == ({kind} if kind else set())


@pytest.mark.parametrize(
    ("logprob", "reason", "kind"),
    [(-1.0, "length", None), (-1.00001, "length", None), (-1.1, "length", "changed"), (-1.0, "stop", "changed")],
)
def test_a_fixed_question_has_one_answer(logprob: float, reason: str, kind: str | None) -> None:
    """Its log probabilities and its end are those of the undisturbed answer, too."""

    def log(value: float, end: str) -> list[LogEntry]:
        run = {"choice": 0, "position": 0, "tokens": ANSWER, "logprobs": [[value, [[5, value]]]] * 4}
        return [STARTED, LogEntry("1-1", "tokens", {"output": [run]}), finished("1-2", 4, reason=end)]

    seen = Seen("r", "redis", PAYLOAD, frozenset({"finished"}), 0, accepted_at=0.0, ended="finished")
    seen.tokens = {0: ANSWER}
    checker = Checker(Undisturbed([Answer([ANSWER], fold(log(-1.0, "length")))], str), [])
    checker.check(seen, Log([], [], log(logprob, reason)))
    assert kinds(checker.findings) == ({kind} if kind else set())


def test_a_client_that_left_has_read_the_beginning() -> None:
    assert not check(WHOLE, text="5 6 ", ended="left").violations
    assert kinds(check(WHOLE, text="5 7 ", ended="left")) == {"changed"}


def test_an_unexplained_end_is_reported() -> None:
    log = [*WHOLE[:2], failed("1-2", 2, "cancelled")]
    assert kinds(check(log, tokens=[5, 6], ended="cancelled")) == {"unasked"}
    assert not check(log, tokens=[5, 6], ended="cancelled", allowed=["finished", "cancelled"]).violations
    lost = [*WHOLE[:2], failed("1-2", 2, "lost")]
    assert kinds(check(lost, tokens=[5, 6], ended="lost")) == {"lost"}


def test_a_client_that_waits_in_vain_is_reported() -> None:
    assert kinds(check(WHOLE[:2], tokens=[5, 6], ended="gave up")) == {"stuck", "missing_terminal"}


def test_a_vanished_entry_is_reported() -> None:
    seen = Seen("r", "redis", PAYLOAD, frozenset({"finished"}), accepted_at=0.0, ended="finished", tokens={0: ANSWER})
    checker = Checker(Undisturbed([Answer([ANSWER])], str), [])
    checker.check(seen, Log([*WHOLE, entry("1-3", "started")], [0.0] * 4, list(WHOLE)))
    assert kinds(checker.findings) == {"changed"}


LOSS = Loss(1.5, 3.0)


def check_after_loss(final: Sequence[LogEntry], *, ended: str, tokens: list[int], times: Sequence[float]) -> Checker:
    """WHOLE was watched at `times`; then Redis lost its writes from 1.5 to 3 s, and the log became `final`."""
    seen = Seen(
        "r", "redis", PAYLOAD, frozenset({"finished"}), posted_at=0.0, accepted_at=0.0, ended=ended, ended_at=9.0
    )
    seen.tokens = {0: tokens}
    checker = Checker(Undisturbed([Answer([ANSWER])], str), [], losses=[LOSS])
    checker.check(seen, Log(list(WHOLE), list(times), list(final)))
    return checker


def test_lost_and_rewritten_entries_are_no_violation() -> None:
    again = [*WHOLE[:2], entry("2-0", "started"), finished("2-1", 4, (2, [7, 8]))]
    checker = check_after_loss(again, ended="finished", tokens=ANSWER, times=[0.0, 1.0, 2.0])
    assert not checker.findings.violations
    assert checker.losses.entries == {LOSS: [2.0]}
    assert kinds(check_after_loss(again, ended="finished", tokens=ANSWER, times=[0.0, 0.5, 1.0]).findings) == {
        "changed"
    }


def test_a_cancel_may_be_lost_with_its_terminal_event() -> None:
    """The answer continues and finishes, and its client sees that, unless it saw the lost end."""
    watched = [*WHOLE[:2], failed("1-2", 2, "cancelled")]
    final = [*WHOLE[:2], entry("2-0", "started"), finished("2-1", 4, (2, [7, 8]))]
    for ended, tokens, found in (
        ("finished", ANSWER, set()),
        ("cancelled", [5, 6], set()),
        ("finished", [5, 6], {"lost"}),
    ):
        seen = Seen("r", "redis-cancel", PAYLOAD, frozenset({"finished", "cancelled"}), posted_at=0.0, accepted_at=0.0)
        seen.ended, seen.ended_at, seen.cancelled_at, seen.tokens = ended, 9.0, 1.8, {0: list(tokens)}
        checker = Checker(Undisturbed([Answer([ANSWER])], str), [], losses=[LOSS])
        checker.check(seen, Log(watched, [0.0, 1.0, 2.0], final))
        assert kinds(checker.findings) == found


def test_a_second_loss_may_take_the_end_of_rewritten_entries() -> None:
    again = [entry("2-0", "started"), finished("2-1", 4, (1, [6, 7, 8]))]
    watched = [STARTED, entry("1-1", "tokens", (0, [5])), entry("1-2", "tokens", (1, [6])), *again]
    seen = Seen(
        "r", "redis", {}, frozenset({"finished"}), posted_at=0.0, accepted_at=0.0, ended="finished", ended_at=9.0
    )
    seen.tokens = {0: ANSWER}
    checker = Checker(Undisturbed([Answer([ANSWER])], str), [], losses=[Loss(1.5, 3.0), Loss(8.0, 9.5)])
    final = [*watched[:2], entry("3-0", "started"), finished("3-1", 4, (1, [6, 7, 8]))]
    checker.check(seen, Log(watched, [0.0, 1.0, 2.0, 8.1, 8.5], final))
    assert not checker.findings.violations


def test_a_client_told_of_a_loss_may_have_read_something_else() -> None:
    again = [*WHOLE[:1], entry("2-0", "started"), finished("2-1", 4, (0, ANSWER))]
    checker = check_after_loss(again, ended="reply_conflict", tokens=[9, 6], times=[0.0, 2.0, 2.5])
    assert (kinds(checker.findings), checker.losses.told) == (set(), ["r"])
    untold = check_after_loss(again, ended="finished", tokens=[9, 6, 7, 8], times=[0.0, 2.0, 2.5])
    assert kinds(untold.findings) == {"changed"}


def test_a_forgotten_request_is_a_violation_unless_its_client_was_told() -> None:
    times = [1.6, 2.0, 2.5]
    assert not check_after_loss([], ended="lost", tokens=[5], times=times).findings.violations
    assert not check_after_loss([], ended="finished", tokens=ANSWER, times=times).findings.violations
    assert kinds(check_after_loss([], ended="finished", tokens=[5, 6], times=times).findings) == {"lost"}


def test_running_on_after_a_cancel_is_reported() -> None:
    tokens = [entry(f"1-{number + 1}", "tokens", (number, [token])) for number, token in enumerate(ANSWER)]
    log = [STARTED, *tokens, failed("1-5", 4, "cancelled")]
    ends: dict[str, Any] = {"ended": "cancelled", "allowed": ["cancelled", "finished"]}
    assert not check(log, cancelled_after=2, **ends).violations
    assert kinds(check(log, cancelled_after=0, **ends)) == {"after_cancel"}
    assert not check(log, cancelled_after=0, faults=[Fault("redis-kill", "redis", 0.0, 1.0)], **ends).violations


def test_a_dead_letter_without_a_cause_is_reported() -> None:
    checker = Checker(Undisturbed([], str), [])
    requests = {"good": Seen("good", "redis", {}, frozenset({"finished"}))}
    requests["bad"] = Seen("bad", "redis-nonsense", {}, frozenset({"invalid_request"}))
    checker.check_dead_letters([{"id": "bad", "reason": "invalid_request", "message": ""}], requests)
    assert not checker.findings.violations
    checker.check_dead_letters([{"id": "good", "reason": "dead_letter", "message": ""}], requests)
    checker.check_dead_letters([{"id": "nobody's", "reason": "invalid_request", "message": ""}], requests)
    assert checker.findings.count("dead_letters") == 2


def test_leaks_of_memory_and_descriptors_are_reported() -> None:
    before = [Sample("worker-1", 1, 0.0, 100 * 2**20, 20)]
    assert not list(find_leaks(before, [Sample("worker-1", 2, 9.0, 120 * 2**20, 22)]))
    assert len(list(find_leaks(before, [Sample("worker-1", 2, 9.0, 400 * 2**20, 90)]))) == 2


def test_one_seed_gives_one_plan_and_no_kind_is_left_out() -> None:
    first, second = (plan(Random("1 faults"), list(FAULTS), 4, 14) for _ in range(2))
    assert first == second
    assert {one.kind for one in first} == set(FAULTS)
    assert not plan(Random(1), [], 2, 14)
