"""Follows JSON text that arrives in pieces, character by character."""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

_SPACE: Final = " \t\r\n"
_CLOSES: Final = MappingProxyType({"{": "}", "[": "]"})
_ESCAPED: Final = '"\\/bfnrtu'
_HEX: Final = "0123456789abcdefABCDEF"
_HEX_LENGTH: Final = 4


class Place(Enum):
    """A text's position in a JSON value."""

    VALUE = auto()
    """Before a value."""
    FIRST_ITEM = auto()
    """Before the first value of an array, or its end."""
    FIRST_KEY = auto()
    """Before the first name in an object, or its end."""
    KEY = auto()
    """Before another name."""
    COLON = auto()
    """After a name."""
    BEHIND = auto()
    """After a value; for numbers, only once the next character has arrived."""
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    ATOM = auto()
    """In a number, or in true, false and null."""


def _atoms() -> Mapping[str, Mapping[str, str]]:
    """Return transitions from the prefix of a number or word (digits by their kind) by the next character."""
    digits = "0123456789"
    power = {"e": "e", "E": "e"}
    steps: dict[str, dict[str, str]] = {
        "": {"-": "-", **dict.fromkeys(digits, "1"), "0": "0"},
        "-": {**dict.fromkeys(digits, "1"), "0": "0"},
        "0": {".": ".", **power},
        "1": {**dict.fromkeys(digits, "1"), ".": ".", **power},
        ".": dict.fromkeys(digits, ".1"),
        ".1": {**dict.fromkeys(digits, ".1"), **power},
        "e": {**dict.fromkeys(digits, "e1"), **dict.fromkeys("+-", "e+")},
        "e+": dict.fromkeys(digits, "e1"),
        "e1": dict.fromkeys(digits, "e1"),
    }
    for word in ("true", "false", "null"):
        for length, char in enumerate(word):
            steps.setdefault(word[:length], {})[char] = word[: length + 1]
    return steps


_ATOMS: Final = _atoms()
_WHOLE: Final = frozenset({"0", "1", ".1", "e1", "true", "false", "null"})


class JsonScanner:
    """Tells whether a text is the beginning of one JSON value (RFC 8259), and its position in it.

    Each character is examined once, whatever it is part of; only the open brackets are stored.
    """

    def __init__(self) -> None:
        self.place = Place.VALUE
        self._closing: list[str] = []
        """The closing character of each open bracket."""
        self._in_key = False
        self._atom = ""
        self._hex_left = 0

    @property
    def depth(self) -> int:
        """Number of open objects and arrays."""
        return len(self._closing)

    def take(self, char: str) -> bool:
        """Whether the next character may come here; after a refusal, it must not be called again."""
        return _STEPS[self.place](self, char)

    def _value(self, char: str) -> bool:
        if char in _SPACE:
            return True
        if char == '"':
            self.place, self._in_key = Place.STRING, False
            return True
        if char in _CLOSES:
            self._closing.append(_CLOSES[char])
            self.place = Place.FIRST_KEY if char == "{" else Place.FIRST_ITEM
            return True
        self.place, self._atom = Place.ATOM, _ATOMS[""].get(char, "")
        return bool(self._atom)

    def _first_item(self, char: str) -> bool:
        return self._close() if char == "]" else self._value(char)

    def _first_key(self, char: str) -> bool:
        return self._close() if char == "}" else self._key(char)

    def _key(self, char: str) -> bool:
        if char == '"':
            self.place, self._in_key = Place.STRING, True
            return True
        return char in _SPACE

    def _colon(self, char: str) -> bool:
        if char == ":":
            self.place = Place.VALUE
            return True
        return char in _SPACE

    def _behind(self, char: str) -> bool:
        if char in _SPACE:
            return True
        if not self._closing:
            return False
        if char == ",":
            self.place = Place.KEY if self._closing[-1] == "}" else Place.VALUE
            return True
        return char == self._closing[-1] and self._close()

    def _close(self) -> bool:
        self._closing.pop()
        self.place = Place.BEHIND
        return True

    def _string(self, char: str) -> bool:
        if char == '"':
            self.place = Place.COLON if self._in_key else Place.BEHIND
        elif char == "\\":
            self.place = Place.ESCAPE
        return char >= " "

    def _escape(self, char: str) -> bool:
        self.place, self._hex_left = (Place.HEX, _HEX_LENGTH) if char == "u" else (Place.STRING, 0)
        return char in _ESCAPED

    def _hex(self, char: str) -> bool:
        self._hex_left -= 1
        if not self._hex_left:
            self.place = Place.STRING
        return char in _HEX

    def _in_atom(self, char: str) -> bool:
        further = _ATOMS.get(self._atom, {}).get(char)
        if further is not None:
            self._atom = further
            return True
        if self._atom not in _WHOLE:
            return False
        self.place = Place.BEHIND
        return self._behind(char)


_STEPS: Final[Mapping[Place, Callable[[JsonScanner, str], bool]]] = MappingProxyType(
    {
        Place.VALUE: JsonScanner._value,
        Place.FIRST_ITEM: JsonScanner._first_item,
        Place.FIRST_KEY: JsonScanner._first_key,
        Place.KEY: JsonScanner._key,
        Place.COLON: JsonScanner._colon,
        Place.BEHIND: JsonScanner._behind,
        Place.STRING: JsonScanner._string,
        Place.ESCAPE: JsonScanner._escape,
        Place.HEX: JsonScanner._hex,
        Place.ATOM: JsonScanner._in_atom,
    }
)
