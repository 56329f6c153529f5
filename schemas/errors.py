"""The error for an invalid request, and the codes that terminal error events carry."""

import copyreg
import re
from enum import StrEnum
from reprlib import Repr
from typing import Any


class ErrorCode(StrEnum):
    """The `code` of a terminal error event."""

    INVALID_REQUEST = "invalid_request"
    """The entry breaks a rule of the contract or a limit of the model; the message names the field."""
    UNSUPPORTED_VERSION = "unsupported_version"
    EXPIRED = "expired"
    """The deadline passed before the request finished."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """The queue entry is gone and nothing shows what became of the request."""
    DEAD_LETTER = "dead_letter"
    """The request was set aside after attempts that made no progress."""
    ENGINE_ERROR = "engine_error"
    """The engine failed on this request alone."""


SERVICE_FAULTS = (ErrorCode.EXPIRED, ErrorCode.LOST, ErrorCode.DEAD_LETTER, ErrorCode.ENGINE_ERROR)
"""Failures that nobody asked for and that the request did not cause."""

MAX_FIELD_LENGTH = 160
"""Field names are cut to this length: unknown names come from the input and may have any length."""
_MAX_SHOWN_LENGTH = 80
_SHORT_REPR = Repr()
_SHORT_REPR.maxlevel = 3
_SHORT_REPR.maxlist = _SHORT_REPR.maxtuple = _SHORT_REPR.maxdict = _SHORT_REPR.maxset = 6
_SHORT_REPR.maxstring = _SHORT_REPR.maxlong = _SHORT_REPR.maxother = _MAX_SHOWN_LENGTH


def shown(value: object) -> str:
    """Return at most 80 characters that show `value`, at a bounded cost however large or deeply nested it is."""
    if isinstance(value, bytes | str):
        value = value[:_MAX_SHOWN_LENGTH]
    text = _SHORT_REPR.repr(value)
    return text if len(text) <= _MAX_SHOWN_LENGTH else text[: _MAX_SHOWN_LENGTH - 3] + "..."


_QUOTED = re.compile(r"(?P<field>.*?): got .*, allowed: (?P<allowed>.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


def without_values(message: str) -> str:
    """Return a message for logs: without the value that an InvalidRequest quotes, or a field that is not a valid name.

    The sender of the request gets the full message; the quoted values can be prompts.
    """
    quoting = _QUOTED.fullmatch(message)
    if quoting is None:
        return message
    field = quoting["field"]
    return f"{field if _NAME.fullmatch(field) else '…'}: allowed: {quoting['allowed']}"


def reduced(error: Exception) -> tuple[Any, ...]:
    """Return the result of `__reduce__` for an error that must be copied and pickled with its attributes.

    By default Python rebuilds an exception from its message alone.
    """
    made = copyreg.__newobj__  # type: ignore[attr-defined]  # typeshed lacks it
    return made, (type(error), *error.args), error.__dict__


class InvalidRequest(ValueError):
    """Input that breaks the contract: names the field, the value and what is allowed.

    `str()` of it is a complete sentence that can be shown to a user as it is. `why` adds details about the value, and
    may quote it.
    """

    def __init__(
        self,
        field: str,
        value: object,
        allowed: str,
        code: ErrorCode = ErrorCode.INVALID_REQUEST,
        *,
        why: str = "",
    ) -> None:
        self.field = field.encode(errors="backslashreplace").decode()[:MAX_FIELD_LENGTH]
        got = f"{shown(value)} ({why})" if why else shown(value)
        super().__init__(f"{self.field}: got {got}, allowed: {allowed}")
        self.value = value
        self.allowed = allowed
        self.code = code
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)

    def renamed(self, field: str) -> "InvalidRequest":
        """Return the same error under the field name that its recipient uses."""
        return InvalidRequest(field, self.value, self.allowed, self.code, why=self.why)
