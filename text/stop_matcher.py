"""Finds stop strings in text that arrives in pieces, and holds back what may be the beginning of one."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    """A stop string in the text: characters `start` to `end` of everything pushed."""

    stop: str
    start: int
    end: int


class StopMatcher:
    """Aho–Corasick over the stop strings: one table step per character, however many there are.

    The match is the stop string that is complete first, which a stream can decide without waiting for more text; if
    several are complete at the same character, the one that began first, so that no part of any of them is output. So
    the match and the output are functions of the whole text, never of how it was cut into pushes.

    A state is a node of the trie of all stops: the longest suffix of the text that begins one. Its depth is the number
    of characters to hold back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("stops: got '', allowed: strings of at least one character")
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._depth = [0]
        self._longest: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self._link()
        self._state = 0
        self._held = ""
        self._length = 0
        self.match: Match | None = None
        """The match, once there is one."""

    @property
    def held(self) -> str:
        """The end of the text that is held back because it may be the beginning of a stop string."""
        return self._held

    def push(self, text: str) -> tuple[str, Match | None]:
        """Take the next piece of text; return the part that can no longer belong to a stop string, and the match.

        After a match there is no more output: the text ends at `match.start`.
        """
        if self.match is not None:
            return "", self.match
        if len(self._next) == 1:
            self._length += len(text)
            return text, None
        for number, char in enumerate(text, start=1):
            self._state = self._step(self._state, char)
            stop = self._longest[self._state]
            if stop is not None:
                return self._matched(stop, text[:number])
        self._length += len(text)
        return self._release(self._held + text, self._depth[self._state]), None

    def finish(self) -> str:
        """Return the text held back, if the text ends here without a match."""
        rest, self._held, self._state = self._held, "", 0
        return rest

    def _matched(self, stop: str, text: str) -> tuple[str, Match]:
        self._length += len(text)
        self.match = Match(stop, self._length - len(stop), self._length)
        safe = self._release(self._held + text, len(stop))
        self._held = ""
        return safe, self.match

    def _release(self, text: str, hold: int) -> str:
        cut = len(text) - hold
        self._held = text[cut:]
        return text[:cut]

    def _step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(char, 0)

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            following = self._next[state].get(char)
            if following is None:
                following = self._next[state][char] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self._depth.append(self._depth[state] + 1)
                self._longest.append(None)
            state = following
        self._longest[state] = stop

    def _link(self) -> None:
        """Compute, breadth first, each node's fail link: its longest proper suffix that is a node."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, following in self._next[state].items():
                self._fail[following] = self._step(self._fail[state], char)
                queue.append(following)
            if self._longest[state] is None:
                self._longest[state] = self._longest[self._fail[state]]
