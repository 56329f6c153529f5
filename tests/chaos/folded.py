"""A reply log read by positions: its tokens, its end, and its faults."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.wire import LogEntry


@dataclass
class Folded:
    """Tokens by choice; the first terminal's outcome and message; the number of terminals."""

    tokens: list[list[int]] = field(default_factory=list)
    logprobs: list[list[Any]] = field(default_factory=list)
    """By choice, one item per token: `[log probability, [[token, log probability], ...]]`, or None."""
    prompt: list[Any] = field(default_factory=list)
    """The same of the prompt's tokens."""
    outcome: str | None = None
    message: str = ""
    endings: list[dict[str, Any]] = field(default_factory=list)
    """Of the first terminal, by choice."""
    usage: dict[str, int] = field(default_factory=dict)
    num_terminals: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)
    """Kind and detail."""
    _wanted: int = 0
    """Tokens of the prompt whose log probabilities come before the first token."""

    def take(self, one: LogEntry) -> None:
        """Take the next entry."""
        if self.outcome is not None and one.type != "started":
            self.problems.append(("repeated", f"{one.type} {one.id} after the end"))
        if one.type == "started":
            self._wanted = one.event.get("prompt_tokens", 0) if "prompt_logprobs" in one.event else 0
        if one.type == "prompt":
            self._take_prompt(one)
        runs = one.event.get("output", ())
        if (any(run["tokens"] for run in runs) or one.type == "finished") and len(self.prompt) < self._wanted:
            detail = f"{one.id}: output after {len(self.prompt)} of {self._wanted} log probabilities of the prompt"
            self.problems.append(("lost", detail))
        for run in runs:
            self._take_run(one.id, run)
        if one.is_terminal:
            self.num_terminals += 1
            if self.outcome is None:
                self._end(one)

    def _take_prompt(self, one: LogEntry) -> None:
        position = one.event["position"]
        if position != len(self.prompt):
            kind = "lost" if position > len(self.prompt) else "repeated"
            self.problems.append((kind, f"{one.id}: position {position} of the prompt after {len(self.prompt)}"))
        self.prompt.extend(one.event["logprobs"][max(0, len(self.prompt) - position) :])

    def _take_run(self, entry_id: str, run: dict[str, Any]) -> None:
        choice, position, tokens = run["choice"], run["position"], run["tokens"]
        while len(self.tokens) <= choice:
            self.tokens.append([])
            self.logprobs.append([])
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
        logprobs = run.get("logprobs") or [None] * len(tokens)
        self.logprobs[choice].extend(logprobs[len(overlap) :])

    def _end(self, one: LogEntry) -> None:
        self.outcome = one.outcome
        self.message = one.event["error"]["message"] if one.type == "error" else ""
        self.endings, self.usage = one.event["choices"], one.event["usage"]
        for choice, ending in enumerate(self.endings):
            have = len(self.tokens[choice]) if choice < len(self.tokens) else 0
            if ending["tokens"] != have:
                detail = f"the end speaks of {ending['tokens']} tokens of choice {choice}, there are {have}"
                self.problems.append(("lost" if ending["tokens"] > have else "repeated", detail))
            if one.type == "finished" and "finish_reason" not in ending:
                self.problems.append(("changed", f"choice {choice} finished without a reason"))
        counted, have = self.usage["completion_tokens"], sum(map(len, self.tokens))
        if counted != have:
            self.problems.append(("changed", f"the usage counts {counted} tokens, there are {have}"))


def fold(entries: Sequence[LogEntry]) -> Folded:
    """Fold a whole log."""
    folded = Folded()
    for one in entries:
        folded.take(one)
    return folded


def gaps(entries: Sequence[LogEntry]) -> list[tuple[str, str]]:
    """Return the kind and details of ids that are out of order: each is `epoch-index`, and each epoch begins with a
    started event and counts what follows.
    """
    found, newest = [], (0, 0)
    for one in entries:
        epoch, index = (int(part) for part in one.id.split("-"))
        if index != (0 if one.type == "started" else newest[1] + 1 if epoch == newest[0] else -1):
            found.append(("lost", f"{one.type} {one.id} after {newest[0]}-{newest[1]}"))
        newest = epoch, index
    return found
