"""A client's position in a reply, the SSE `id:` (tokens per choice and a checksum), and resuming from it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack
from typing import Any, NamedTuple, Self
from zlib import crc32

from orcastream.broker.errors import ReplyConflict
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.events import Run
from orcastream.schemas.limits import MAX_CHOICES

_FORM = re.compile(r"(\d{1,9}(?:,\d{1,9})*)-([0-9a-f]{8})")


def extend_checksum(checksum: int, tokens: Sequence[int]) -> int:
    """Return the checksum of one choice after more tokens; 0 is that of none."""
    return crc32(pack(f"<{len(tokens)}I", *tokens), checksum)


def resume_id(counts: Sequence[int], checksums: Sequence[int]) -> str:
    """Return `str(ResumePoint.of(counts, checksums))`, for callers that need one per token."""
    return f"{','.join(map(str, counts))}-{crc32(pack(f'<{len(checksums)}I', *checksums)):08x}"


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The number of tokens delivered per choice, and their checksum."""

    counts: tuple[int, ...]
    checksum: int

    @classmethod
    def of(cls, counts: Sequence[int], checksums: Sequence[int]) -> Self:
        """Build from counts and checksums per choice."""
        return cls(tuple(counts), crc32(pack(f"<{len(checksums)}I", *checksums)))

    @classmethod
    def of_tokens(cls, tokens: Sequence[Sequence[int]]) -> Self:
        """Build from the tokens of each choice."""
        return cls.of([len(choice) for choice in tokens], [extend_checksum(0, choice) for choice in tokens])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `17,12-9f3a0c1d`; raise InvalidRequest if invalid."""
        match = _FORM.fullmatch(text)
        if match is None or text.count(",") >= MAX_CHOICES:
            raise InvalidRequest("Last-Event-ID", text, "tokens per choice joined by commas, `-`, 8 hex digits")
        return cls(tuple(int(count) for count in match[1].split(",")), int(match[2], 16))

    def __str__(self) -> str:
        return f"{','.join(map(str, self.counts))}-{self.checksum:08x}"


class CaughtUp(NamedTuple):
    """The reply has reached the client's position: the tokens of each choice that it has, and the first ones beyond."""

    delivered: list[list[int]]
    beyond: list[Run]


class Resumption:
    """Silently collects the part that a client already has, and compares it once the log has reached that position.

    Only tokens are compared: the epochs and events that wrote them do not matter.
    """

    def __init__(self, point: ResumePoint) -> None:
        self._point = point
        self._held: list[list[int]] = [[] for _ in point.counts]
        self._logprobs: list[list[Any]] = [[] for _ in point.counts]
        """One item per token, if log probabilities were requested; otherwise empty."""

    def take(self, runs: Sequence[Run], *, has_finished: bool) -> CaughtUp | None:
        """Take more of the reply; None while it is shorter than the client's part.

        Raises ReplyConflict if it differs, or if `has_finished` before reaching that position.
        """
        for run in runs:
            while len(self._held) <= run.choice:
                self._held.append([])
                self._logprobs.append([])
            self._held[run.choice].extend(run.tokens)
            self._logprobs[run.choice].extend(run.logprobs or ())
        counts = [*self._point.counts, *[0] * (len(self._held) - len(self._point.counts))]
        if any(len(tokens) < count for tokens, count in zip(self._held, counts, strict=True)):
            if has_finished:
                raise ReplyConflict(f"the reply ended before {self._point}, which the client was given")
            return None
        delivered = [tokens[:count] for tokens, count in zip(self._held, counts, strict=True)]
        if ResumePoint.of_tokens(delivered[: len(self._point.counts)]) != self._point:
            raise ReplyConflict(f"what the client was given ({self._point}) is not what the log says")
        beyond = [
            Run(choice, count, tuple(tokens[count:]), tuple(self._logprobs[choice][count:]) or None)
            for choice, (tokens, count) in enumerate(zip(self._held, counts, strict=True))
            if len(tokens) > count
        ]
        return CaughtUp(delivered, beyond)
