"""Control tokens come only from a chat template: where a user's text spells one, it stays text."""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

_PIECE: Final = 16 * 1024
"""Characters searched in one call, which holds the interpreter."""
_INDEX_DIGITS: Final = 5


class AddedToken(Protocol):
    """A token added to the vocabulary, as `tokenizers` describes it."""

    @property
    def content(self) -> str:
        """Its spelling."""

    @property
    def lstrip(self) -> bool:
        """Whether it absorbs the spaces before it."""

    @property
    def rstrip(self) -> bool:
        """Whether it absorbs the spaces after it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt; in a `literal` one, spelled control tokens are text."""

    text: str
    literal: bool = False


class ControlTokens:
    """The control tokens of one tokenizer, which a text may spell unintentionally."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens = {token.content: token for token in tokens if token.content}
        longest_first = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._longest = len(longest_first[0]) if longest_first else 0
        self._beginnings = frozenset(content[:end] for content in self._tokens for end in range(1, len(content)))

    def __getitem__(self, content: str) -> AddedToken:
        return self._tokens[content]

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the span of each control token that `text` spells, from left to right, the longest at each position."""
        end = 0
        for start in range(0, len(text), _PIECE):
            stop = start + _PIECE
            for match in self._pattern.finditer(text, max(start, end), stop + self._longest):
                if match.start() >= stop:
                    break
                end = match.end()
                yield match.span()

    def begun(self, text: str) -> int:
        """Return the start of a control token at the end of `text` that later text may complete; len(text) if none."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start:] in self._beginnings:
                return start
        return len(text)


class Escapes:
    """Hides the control tokens spelled in a conversation's texts while a template combines them.

    They are replaced by unpredictable digits, which a template neither trims nor changes.
    """

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        self._mark = f"{secrets.randbits(64):020d}"
        self._hidden: dict[str, str] = {}
        """Stand-in of each hidden text."""

    def escape(self, value: Any) -> Any:
        """Return `value` with all its texts escaped, including those in maps and arrays and names in maps."""
        if isinstance(value, str):
            return self._escape_text(value)
        if isinstance(value, Mapping):
            return {self.escape(name): self.escape(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.escape(inner) for inner in value]
        return value

    def split(self, rendered: str) -> list[Segment]:
        """Split a template's output for escaped texts into parts: `literal` where texts spell control tokens."""
        if not self._hidden:
            return [Segment(rendered)]
        segments: list[Segment] = []
        meant: list[str] = []
        for text, token in self._texts(rendered):
            if self._mark not in text:
                meant.append(text)
            else:
                segments += [Segment("".join(meant)), Segment(self._restored(text), literal=True)]
                meant = []
            meant.append(token)
        return [segment for segment in (*segments, Segment("".join(meant))) if segment.text]

    def _texts(self, rendered: str) -> Iterator[tuple[str, str]]:
        """Yield each text and the control token after it, without the spaces that adjacent tokens absorb."""
        begin, takes_spaces = 0, False
        for start, end in (*self._control.spans(rendered), (len(rendered), len(rendered))):
            text, content = rendered[begin:start], rendered[start:end]
            token = self._control[content] if content else None
            text = text.lstrip() if takes_spaces else text
            yield (text.rstrip() if token is not None and token.lstrip else text), content
            begin, takes_spaces = end, token is not None and token.rstrip

    def _escape_text(self, text: str) -> str:
        parts, begin = [], 0
        for start, end in self._control.spans(text):
            parts += [text[begin:start], self._stand_in(text[start:end])]
            begin = end
        rest = text[begin:]
        cut = self._control.begun(rest)
        parts += [rest[:cut], self._stand_in(rest[cut:])] if cut < len(rest) else [rest]
        return "".join(parts)

    def _stand_in(self, hidden: str) -> str:
        return self._hidden.setdefault(hidden, f"{self._mark}{len(self._hidden):0{_INDEX_DIGITS}d}")

    def _restored(self, text: str) -> str:
        hidden = list(self._hidden)
        return re.sub(rf"{self._mark}(\d{{{_INDEX_DIGITS}}})", lambda found: hidden[int(found[1])], text)
