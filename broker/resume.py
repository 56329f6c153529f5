"""How far a client has come: the SSE `id:`, tokens delivered per choice and a checksum over them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack
from typing import Self
from zlib import crc32

from schemas.errors import InvalidRequest
from schemas.limits import MAX_CHOICES

_FORM = re.compile(r"(\d{1,9}(?:,\d{1,9})*)-([0-9a-f]{8})")


def extend_checksum(checksum: int, tokens: Sequence[int]) -> int:
    """The checksum of one choice after more tokens; 0 is that of none."""
    return crc32(pack(f"<{len(tokens)}I", *tokens), checksum)


def resume_id(counts: Sequence[int], checksums: Sequence[int]) -> str:
    """`str(ResumePoint.of(counts, checksums))`, for those who need one per token."""
    return f"{','.join(map(str, counts))}-{crc32(pack(f'<{len(checksums)}I', *checksums)):08x}"


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Tokens delivered per choice, and what they were."""

    counts: tuple[int, ...]
    checksum: int

    @classmethod
    def of(cls, counts: Sequence[int], checksums: Sequence[int]) -> Self:
        """From counts and checksums per choice."""
        return cls(tuple(counts), crc32(pack(f"<{len(checksums)}I", *checksums)))

    @classmethod
    def of_tokens(cls, tokens: Sequence[Sequence[int]]) -> Self:
        """From the tokens of each choice."""
        return cls.of([len(choice) for choice in tokens], [extend_checksum(0, choice) for choice in tokens])

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `17,12-9f3a0c1d`; InvalidRequest when it is none."""
        match = _FORM.fullmatch(text)
        if match is None or text.count(",") >= MAX_CHOICES:
            raise InvalidRequest("Last-Event-ID", text, "tokens per choice joined by commas, `-`, 8 hex digits")
        return cls(tuple(int(count) for count in match[1].split(",")), int(match[2], 16))

    def __str__(self) -> str:
        return f"{','.join(map(str, self.counts))}-{self.checksum:08x}"
