"""Finds marks in text that arrives in pieces."""

SPACE = " \t\r\n"
"""White space around marks, and around calls."""


class UpToMark:
    """Outputs text up to a mark, and holds back what may be the mark's beginning.

    The output depends on the whole text alone, not on how it was cut into pieces, at each of those cuts.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Return the text before the mark, and the text after it; None while there is no mark."""
        text = self._held + text
        start = text.find(self._mark)
        if start >= 0:
            self._held = ""
            return text[:start], text[start + len(self._mark) :]
        cut = len(text) - _begun(text, self._mark)
        self._held = text[cut:]
        return text[:cut], None

    def finish(self) -> str:
        """Return the text held back, at the end of a text without the mark."""
        rest, self._held = self._held, ""
        return rest


class Trimmed:
    """Outputs text without leading white space, and holds back trailing white space."""

    def __init__(self, *, at_start: bool, space: str = SPACE) -> None:
        self._begun = not at_start
        self._space = space
        self._held: list[str] = []

    @property
    def held(self) -> str:
        """White space that more text would output."""
        return "".join(self._held)

    def push(self, text: str) -> str:
        """Return the part of the text that is certainly not at its end."""
        if not self._begun:
            text = text.lstrip(self._space)
        inner = text.rstrip(self._space)
        space = text[len(inner) :]
        if inner:
            inner = self.held + inner
            self._begun, self._held = True, []
        if space:
            self._held.append(space)
        return inner


class PastSpace:
    """Separates white space from what follows it. Each space is examined once, however many there are."""

    def __init__(self, space: str) -> None:
        self._space = space
        self._held: list[str] = []
        self._begun = ""

    def push(self, text: str) -> str:
        """Return what follows the white space, so far."""
        if not self._begun:
            begun = text.lstrip(self._space)
            self._held.append(text[: len(text) - len(begun)])
            text = begun
        self._begun += text
        return self._begun

    @property
    def space(self) -> str:
        """The white space."""
        return "".join(self._held)

    @property
    def held(self) -> str:
        """The white space and what follows it."""
        return self.space + self._begun


def _begun(text: str, mark: str) -> int:
    """Return the length of the longest proper prefix of `mark` with which `text` ends."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
