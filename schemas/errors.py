"""What can be wrong with a request, and the codes that terminal error events carry."""

from enum import StrEnum


class ErrorCode(StrEnum):
    """The `code` of a terminal error event."""

    INVALID_REQUEST = "invalid_request"
    """The entry breaks a rule of the contract or a limit of the model; the message names the field."""
    UNSUPPORTED_VERSION = "unsupported_version"
    EXPIRED = "expired"
    """The deadline passed before the request finished."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """The queue entry is gone and nobody can tell what became of the request."""
    DEAD_LETTER = "dead_letter"
    """The request was set aside after attempts that made no progress."""
    ENGINE_ERROR = "engine_error"
    """The engine failed on this request alone."""


class InvalidRequest(ValueError):
    """Input that breaks the contract: names the field, the value and what is allowed.

    `str()` of it is a complete sentence that can be shown to a user as it is.
    """

    def __init__(self, field: str, value: object, allowed: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field}: got {shown}, allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed
        self.code = code
