"""Whitespace that counts the work done on it."""

from typing import ClassVar, Self, SupportsIndex


class Spaces(str):
    """Whitespace that counts how many of its characters are scanned, including in strings built from it."""

    __slots__ = ()
    seen: ClassVar[int] = 0

    @classmethod
    def _counted(cls, text: str) -> Self:
        Spaces.seen += len(text)
        return cls(text)

    def __add__(self, behind: str) -> Self:
        return self._counted(super().__add__(behind))

    def __radd__(self, before: str) -> Self:
        return self._counted(before + str(self))

    def __getitem__(self, key: SupportsIndex | slice) -> Self:
        return self._counted(super().__getitem__(key))

    def lstrip(self, chars: str | None = None, /) -> Self:
        Spaces.seen += len(self)
        return self._counted(super().lstrip(chars))

    def rstrip(self, chars: str | None = None, /) -> Self:
        Spaces.seen += len(self)
        return self._counted(super().rstrip(chars))
