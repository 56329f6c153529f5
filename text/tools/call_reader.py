"""One call in text that arrives in pieces: a JSON object with a name and arguments."""

import json
from typing import Final

from orcastream.text.marks import SPACE
from orcastream.text.tools.call import CallArguments, CallStart, Part
from orcastream.text.tools.json_scanner import JsonScanner, Place

_ARGUMENTS: Final = frozenset({"arguments", "parameters"})
"""The formats' names of that member; models confuse them."""
_BARE: Final = frozenset({"name", "type"})
"""The only members that a call without arguments may have."""
_NO_ARGUMENTS: Final = "{}"


class CallReader:
    """Reads one object, which is a call if it has a `name`, text, and `arguments` or `parameters`, an object.

    Once both are known the call has begun, whatever follows. Other members are ignored; of several `name`s, the last
    one before the arguments counts. One with only a `name` and a `type` may be a call without arguments: its format
    decides.
    """

    def __init__(self) -> None:
        self._scanner = JsonScanner()
        self._read: list[str] = []
        """The characters before the call has begun."""
        self._key = ""
        self._start = 0
        """Where the last name, or relevant value, begins."""
        self._name = ""
        self._is_bare = True
        """Whether it only has members that a call without arguments may have."""
        self._early: tuple[int, int] | None = None
        """Span of arguments that came before the name."""
        self._told: list[str] = []
        """New arguments in this piece of text."""
        self.has_begun = False
        """Whether the call has begun."""
        self.is_whole = False
        """Whether its arguments are complete."""
        self.has_ended = False
        """Whether the object is closed."""

    @property
    def is_call(self) -> bool:
        """Whether it is a call, or once ended may be one without arguments."""
        return self.has_begun or bool(self._name and self._is_bare)

    @property
    def held(self) -> str:
        """All text taken, if no call has begun."""
        return "".join(self._read)

    def push(self, text: str) -> tuple[list[Part], str | None]:
        """Take the next piece of text; return the certain parts, and the text after the object; None while it is
        open.

        If the object is still open at that text, the text cannot belong to it.
        """
        had_begun, was_whole = self.has_begun, self.is_whole
        rest = None
        for index, char in enumerate(text):
            if self.has_ended or not self._take(char):
                rest = text[index:]
                break
        if rest is None and self.has_ended:
            rest = ""
        parts: list[Part] = [CallStart(self._name)] if self.has_begun and not had_begun else []
        told = "".join(self._told)
        self._told = []
        return [*parts, CallArguments(told, self.is_whole and not was_whole)] if told else parts, rest

    def confirm(self) -> list[Part]:
        """Confirm that an ended object is a call without arguments; return its parts."""
        self.has_begun = self.is_whole = True
        return [CallStart(self._name), CallArguments(_NO_ARGUMENTS, is_last=True)]

    def _take(self, char: str) -> bool:
        scanner = self._scanner
        place, depth = scanner.place, scanner.depth
        if depth == 0 and char not in "{" + SPACE:
            return False
        if not scanner.take(char):
            return False
        self.has_ended = depth == 1 and scanner.depth == 0
        if self.has_begun:
            self._take_told(char)
            return True
        self._read.append(char)
        is_outer = min(depth, scanner.depth) == 1
        if is_outer and (place, depth) != (scanner.place, scanner.depth) and not self._turn(place, char):
            self._read.pop()
            return False
        return True

    def _take_told(self, char: str) -> None:
        """Take a character of a call that has begun: in its arguments, or after them."""
        if not self.is_whole:
            self._told.append(char)
            self.is_whole = self._scanner.depth == 1

    def _turn(self, before: Place, char: str) -> bool:
        """The object's own members have reached another place; return whether this may be a call."""
        here, end = self._scanner.place, len(self._read)
        if before is Place.VALUE:
            self._start = end - 1
            return self._open_value(char)
        if here is Place.BEHIND:
            return self._close_value(end)
        if here is Place.COLON:
            self._key = json.loads("".join(self._read[self._start :]))
            self._is_bare = self._is_bare and self._key in _BARE
        elif before in (Place.KEY, Place.FIRST_KEY):
            self._start = end - 1
        return True

    def _open_value(self, char: str) -> bool:
        if self._key in _ARGUMENTS:
            if char == "{" and self._name:
                self._begin(char)
            return char == "{"
        return self._key != "name" or char == '"'

    def _close_value(self, end: int) -> bool:
        if self._key in _ARGUMENTS:
            self._early = self._start, end
        elif self._key == "name":
            self._name = json.loads("".join(self._read[self._start :]))
            if not self._name or not _can_be_sent(self._name):
                return False
            if self._early is not None:
                self._begin(*self._read[slice(*self._early)])
                self.is_whole = True
        return True

    def _begin(self, *told: str) -> None:
        self.has_begun = True
        self._told += told
        self._read.clear()


def _can_be_sent(text: str) -> bool:
    """Whether it can be encoded: an unpaired surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
