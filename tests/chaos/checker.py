"""What must hold for everything that was recorded. This module imports nothing of the product."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.catalogue import Answer
from tests.chaos.folded import Folded, fold, gaps
from tests.chaos.injector import Fault
from tests.chaos.losses import TOLD, Loss, Losses
from tests.chaos.record import Log, Seen

KINDS = (
    "lost",
    "repeated",
    "changed",
    "missing_terminal",
    "double_terminal",
    "stuck",
    "unasked",
    "after_cancel",
    "dead_letters",
    "leaks",
    "died",
    "client_error",
)
"""What can be wrong; each is a number at the top of the report."""

EVENTS_AFTER_CANCEL = 3
"""Events that may still come once a cancel is confirmed: a write that was under way, that of the iteration under way,
and the terminal."""
_PROMPT_S = 0.5
"""So soon nobody is late, however many events a busy machine brings meanwhile."""
_CANCEL_S = 10.0
"""Within this time of the end of a fault a cancel is obeyed."""
_SETTLING_S = 4.0
"""For so long after its end a fault counts as being felt."""
_ROUNDED = 1e-3
"""So much may a log probability differ from the undisturbed one."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation: its kind, its subject, and the details."""

    kind: str
    subject: str
    detail: str


@dataclass
class Findings:
    """Everything that the checker found."""

    violations: list[Violation] = field(default_factory=list)
    """One per kind and subject: the first."""
    most_events_after_cancel: int = 0
    """Where no fault was felt."""
    cancels_checked: int = 0
    ends: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, subject: str, detail: str) -> None:
        """Record a violation."""
        if not any((one.kind, one.subject) == (kind, subject) for one in self.violations):
            self.violations.append(Violation(kind, subject, detail))

    def count(self, kind: str) -> int:
        """Return the number of subjects with a violation of this kind."""
        return sum(one.kind == kind for one in self.violations)


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The reference: answers by question, and the text of tokens."""

    answers: Sequence[Answer]
    text: Callable[[list[int]], str]


class Checker:
    """Checks one request after the other.

    `begin`: the start of the run, to which reported times are relative. `losses`: when Redis may have lost acknowledged
    writes; clients may be told of these. `standstill_s`: the longest time that the machine did nothing, which counts as
    no delay.
    """

    def __init__(
        self,
        undisturbed: Undisturbed,
        faults: Sequence[Fault],
        begin: float = 0.0,
        *,
        losses: Sequence[Loss] = (),
        standstill_s: float = 0.0,
    ) -> None:
        self.findings = Findings()
        self._undisturbed = undisturbed
        self._faults = faults
        self._begin = begin
        self._standstill_s = standstill_s
        self.losses = Losses(losses)

    def check(self, seen: Seen, log: Log) -> None:
        """Check one request: its log, what its client saw of it, and how it ended."""
        told = seen.ended in TOLD and self.losses.concern(seen)
        if told:
            self.losses.told.append(seen.id)
        for kind, detail in seen.problems:
            if not (told and kind == "lost"):
                self.findings.add(kind, self._subject(seen), detail)
        if seen.posted_again and not self.losses.concern(seen):
            what = "its entry was gone and its log had no end, though Redis had lost nothing"
            self.findings.add("missing_terminal", self._subject(seen), what)
        if seen.accepted_at is None:
            return
        self._check_watched(seen, log)
        for kind, detail in gaps(log.final):
            self.findings.add(kind, self._subject(seen), f"in its log: {detail}")
        log = self.losses.as_answered(seen, log)
        if not log.final and self.losses.concern(seen):
            self._check_forgotten(seen, told=told)
            return
        folded = fold(log.final)
        self.findings.ends[folded.outcome or "no terminal"] += 1
        self._check_log(seen, log, folded)
        self._check_answer(seen, folded)
        if told:
            return
        self._check_end(seen, folded)
        self._check_client(seen, folded)
        if seen.ended == folded.outcome == "finished" and not self.losses.took_the_end(seen):
            self._check_whole(seen, folded)
        lost_cancel = seen.cancelled_at is not None and self.losses.concern(seen)
        if seen.cancelled_at is not None and not seen.ended_before_cancel and not lost_cancel:
            self._check_cancel(seen, log)

    def check_dead_letters(self, letters: Iterable[dict[str, str]], requests: dict[str, Seen]) -> None:
        """Check that each dead letter has a cause: its entry broke the contract."""
        for letter in letters:
            seen = requests.get(letter["id"])
            if seen is None or letter["reason"] not in seen.allowed:
                self.findings.add("dead_letters", letter["id"], f"{letter['reason']}: {letter['message']}")

    def _check_forgotten(self, seen: Seen, *, told: bool) -> None:
        """Redis lost the whole request: check that the client was told, had seen the end, or had left."""
        self.findings.ends["forgotten"] += 1
        if not told and seen.ended != "left" and not self.losses.took_the_end(seen):
            self.findings.add("lost", self._subject(seen), f"Redis lost all of it, and its client saw {seen.ended}")
        self._check_answer(seen, Folded(tokens=[seen.tokens[choice] for choice in sorted(seen.tokens)]))

    def _check_log(self, seen: Seen, log: Log, folded: Folded) -> None:
        subject = self._subject(seen)
        for kind, detail in folded.problems:
            self.findings.add(kind, subject, f"in its log: {detail}")
        if folded.num_terminals == 0:
            self.findings.add("missing_terminal", subject, f"its log has {len(log.final)} entries and no end")
        elif folded.num_terminals > 1:
            self.findings.add("double_terminal", subject, f"its log has {folded.num_terminals} terminals")

    def _check_watched(self, seen: Seen, log: Log) -> None:
        """Check that the log still holds its earlier entries, except those that Redis lost."""
        final = {one.id: one for one in log.final}
        for one, at in zip(log.watched, log.times, strict=True):
            now = final.get(one.id)
            if now != one and not (now is None and self.losses.may_lack(at)):
                self.findings.add("changed", self._subject(seen), f"entry {one.id} of its log was {one}, is {now}")

    def _check_end(self, seen: Seen, folded: Folded) -> None:
        """Check that the client's own actions explain the end, and that the client was told."""
        subject = self._subject(seen)
        in_order = folded.outcome in seen.allowed or (folded.outcome == "lost" and self.losses.concern(seen))
        if folded.outcome is not None and not in_order:
            kind = "lost" if folded.outcome == "lost" else "unasked"
            self.findings.add(kind, subject, f"ended with {folded.outcome}: {folded.message}")
        if seen.ended in (None, "gave up"):
            self.findings.add("stuck", subject, "its client waited in vain for the end")
        elif seen.ended == "reply_conflict":
            self.findings.add("changed", subject, "its client was told of a conflict")
        elif seen.ended == "left" or folded.outcome is None or self.losses.took_the_end(seen):
            return
        elif seen.ended != folded.outcome:
            self.findings.add("changed", subject, f"its client saw {seen.ended}, the log ended with {folded.outcome}")

    def _check_client(self, seen: Seen, folded: Folded) -> None:
        """Check that the client read what the log holds; all of it, if the client saw the end."""
        lost_end = self.losses.took_the_end(seen)
        more_is_lost = lost_end or (folded.outcome != "finished" and self.losses.concern(seen))
        whole = seen.ended == "finished" and not lost_end
        for choice, tokens in enumerate(folded.tokens):
            expected: Sequence[object] = tokens
            got: Sequence[object] = seen.tokens.get(choice, [])
            if seen.reads_text:
                expected, got = self._text(folded, choice), seen.texts.get(choice, "")
            if got == expected or (not whole and got == expected[: len(got)]):
                continue
            if more_is_lost and expected == got[: len(expected)]:
                continue
            kind = "lost" if got == expected[: len(got)] else "repeated" if len(got) > len(expected) else "changed"
            at = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), len(got))
            detail = f"choice {choice}: client has {len(got)}, log {len(expected)}; they part at {at}: "
            self.findings.add(
                kind, self._subject(seen), f"{detail}{got[at : at + 20]!r} for {expected[at : at + 20]!r}"
            )

    def _text(self, folded: Folded, choice: int) -> str:
        """Return the text of a choice, up to the stop string that ended it."""
        text = self._undisturbed.text(folded.tokens[choice])
        ending = folded.endings[choice] if choice < len(folded.endings) else {}
        return text[: ending.get("text_length")]

    def _check_whole(self, seen: Seen, folded: Folded) -> None:
        """Check what else a client is told at the end: the reasons, the usage, one log probability per token."""
        reasons = {choice: ending["finish_reason"] for choice, ending in enumerate(folded.endings)}
        limit, never_stops = seen.payload["max_tokens"], seen.payload.get("ignore_eos", False)
        for choice, ending in enumerate(folded.endings):
            allowed = ending["tokens"] == limit if reasons[choice] == "length" else "stop" in ending or not never_stops
            if not allowed:
                self._differs(seen, f"choice {choice} of {ending['tokens']} tokens ended as {reasons[choice]}")
        counted = folded.usage["prompt_tokens"], folded.usage["completion_tokens"]
        if "prompt" in seen.payload and counted[0] != len(seen.payload["prompt"]):
            self._differs(seen, f"the usage counts {counted[0]} tokens of the prompt")
        if not 0 <= folded.usage["cached_tokens"] <= counted[0]:
            self._differs(seen, f"the usage counts {folded.usage['cached_tokens']} of {counted[0]} tokens as cached")
        if not seen.reads_text:
            return
        if seen.finish_reasons != reasons:
            self._differs(seen, f"its client was told the reasons {seen.finish_reasons}, the log has {reasons}")
        told = seen.usage and (seen.usage["prompt_tokens"], seen.usage["completion_tokens"])
        if told != counted:
            self._differs(seen, f"its client was told the usage {told}, the log has {counted}")
        wanted = {at: len(one) for at, one in enumerate(folded.tokens) if one and "logprobs" in seen.payload}
        if seen.num_logprobs != wanted:
            self._differs(seen, f"log probabilities came for {seen.num_logprobs} tokens, expected {wanted}")

    def _check_answer(self, seen: Seen, folded: Folded) -> None:
        """Check that the answer is the undisturbed one, as far as it goes."""
        if seen.question is None:
            return
        answer = self._undisturbed.answers[seen.question]
        for choice, tokens in enumerate(folded.tokens):
            expected = answer.of_choice(choice)
            both = min(len(expected), len(tokens))
            if tokens[:both] != expected[:both]:
                at = next(i for i in range(both) if tokens[i] != expected[i])
                detail = f"choice {choice} of question {seen.question} differs from the undisturbed answer at {at}"
                self.findings.add("changed", self._subject(seen), detail)
        if answer.whole is not None:
            self._check_fixed(seen, folded, answer.whole)

    def _check_fixed(self, seen: Seen, folded: Folded, whole: Folded) -> None:
        """Check log probabilities, as far as they go, and the ends of an answer to a fixed question."""
        pairs: list[tuple[str, Sequence[Any], Sequence[Any]]] = [("the prompt", folded.prompt, whole.prompt)]
        pairs += [(f"choice {at}", *one) for at, one in enumerate(zip(folded.logprobs, whole.logprobs, strict=False))]
        for where, got, expected in pairs:
            for at, (one, other) in enumerate(zip(got, expected, strict=False)):
                if not _same(one, other):
                    self._differs(seen, f"log probabilities of {where} at {at}: {one}, undisturbed {other}")
                    break
        if folded.outcome == "finished" and folded.endings != whole.endings:
            self._differs(seen, f"ended with {folded.endings}, undisturbed with {whole.endings}")

    def _differs(self, seen: Seen, detail: str) -> None:
        self.findings.add("changed", self._subject(seen), detail)

    def _check_cancel(self, seen: Seen, log: Log) -> None:
        """After a confirmed cancel one more iteration may run; a fault in between may delay the end."""
        assert seen.cancelled_at is not None
        subject = self._subject(seen)
        self.findings.cancels_checked += 1
        end_at = next((at for one, at in zip(log.watched, log.times, strict=True) if one.is_terminal), None)
        last = seen.cancelled_at if end_at is None else end_at
        felt = [one for one in self._faults if one.begin <= last and one.end + _SETTLING_S >= seen.cancelled_at]
        if felt:
            heal = max(one.end for one in felt)
            if end_at is not None and end_at > max(heal, seen.cancelled_at) + _CANCEL_S + self._standstill_s:
                self.findings.add("after_cancel", subject, f"ended {end_at - seen.cancelled_at:.1f} s after its cancel")
            return
        if seen.events_at_cancel is None:
            return
        more = len(log.final) - seen.events_at_cancel
        self.findings.most_events_after_cancel = max(self.findings.most_events_after_cancel, more)
        late_s = last - seen.cancelled_at
        if more > EVENTS_AFTER_CANCEL and late_s > _PROMPT_S + self._standstill_s:
            detail = f"{more} events came in the {late_s:.2f} s after its cancel was confirmed"
            self.findings.add("after_cancel", subject, detail)

    def _subject(self, seen: Seen) -> str:
        span = [f"{at - self._begin:.1f} s" if at is not None else "?" for at in (seen.posted_at, seen.ended_at)]
        return f"{seen.id} ({seen.behaviour}, {' to '.join(span)})"


def _same(one: Any, other: Any) -> bool:
    """Whether the log probabilities of two tokens, and of the likeliest in their place, agree. Near-ties may change
    places.
    """
    if one is None or other is None:
        return one is other
    values, others = ([token[0], *(value for _, value in token[1])] for token in (one, other))
    return len(values) == len(others) and all(abs(a - b) < _ROUNDED for a, b in zip(values, others, strict=True))
