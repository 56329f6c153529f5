"""The lines of an input file that is read piece by piece."""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from orcastream.schemas.errors import InvalidRequest


class InputLine(NamedTuple):
    """A non-blank line and its number, from 1; blank lines count."""

    at: int
    raw: bytes


class LineTooLong(InvalidRequest):
    """A line longer than any request may be; the lines after it are not read."""

    def __init__(self, at: int, most_bytes: int) -> None:
        super().__init__("line", f"more than {most_bytes} bytes", f"at most {most_bytes} bytes")
        self.at = at


_END: Final = b"\n"


async def input_lines(content: AsyncIterator[bytes], most_bytes: int) -> AsyncIterator[list[InputLine]]:
    """Yield the lines as they are completed, those of one piece together.

    Raises LineTooLong, and what `content` raises.
    """
    at, begun = 1, b""
    async for piece in content:
        *whole, begun = (begun + piece).split(_END)
        lines = [InputLine(at + number, raw.strip()) for number, raw in enumerate(whole)]
        at += len(whole)
        for line in (*lines, InputLine(at, begun)):
            if len(line.raw) > most_bytes:
                raise LineTooLong(line.at, most_bytes)
        yield [line for line in lines if line.raw]
    if begun.strip():
        yield [InputLine(at, begun.strip())]
