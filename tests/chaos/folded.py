"""A reply log read by positions: its tokens, its end, and its faults."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.wire import LogEntry


@dataclass
class Folded:
    """Tokens by choice; the first terminal's outcome and message; the number of terminals."""

    tokens: list[list[int]] = field(default_factory=list)
    outcome: str | None = None
    message: str = ""
    num_terminals: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)
    """Kind and detail."""

    def take(self, one: LogEntry) -> None:
        """Take the next entry."""
        if self.outcome is not None and one.type != "started":
            self.problems.append(("repeated", f"{one.type} {one.id} after the end"))
        for run in one.event.get("output", ()):
            self._take_run(one.id, run["choice"], run["position"], run["tokens"])
        if one.is_terminal:
            self.num_terminals += 1
            if self.outcome is None:
                self._end(one)

    def _take_run(self, entry_id: str, choice: int, position: int, tokens: list[int]) -> None:
        while len(self.tokens) <= choice:
            self.tokens.append([])
        known = self.tokens[choice]
        if position > len(known):
            self.problems.append(("lost", f"{entry_id}: position {position} of choice {choice} after {len(known)}"))
            return
        overlap = known[position : position + len(tokens)]
        if overlap:
            kind = "repeated" if overlap == tokens[: len(overlap)] else "changed"
            detail = f"{entry_id}: {len(overlap)} tokens at position {position} of choice {choice} once more"
            self.problems.append((kind, detail))
        known.extend(tokens[len(overlap) :])

    def _end(self, one: LogEntry) -> None:
        self.outcome = one.outcome
        self.message = one.event["error"]["message"] if one.type == "error" else ""
        for choice, ending in enumerate(one.event["choices"]):
            have = len(self.tokens[choice]) if choice < len(self.tokens) else 0
            if ending["tokens"] != have:
                detail = f"the end speaks of {ending['tokens']} tokens of choice {choice}, there are {have}"
                self.problems.append(("lost" if ending["tokens"] > have else "repeated", detail))
            if one.type == "finished" and "finish_reason" not in ending:
                self.problems.append(("changed", f"choice {choice} finished without a reason"))


def fold(entries: Sequence[LogEntry]) -> Folded:
    """Fold a whole log."""
    folded = Folded()
    for one in entries:
        folded.take(one)
    return folded
