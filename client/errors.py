"""The client's errors: one class per way in which a request can fail, each with the code of the protocol."""

from typing import Any, Final

from orcastream.schemas.errors import ErrorCode, reduced


class ClientError(Exception):
    """Base of all others. `str()` gives a sentence for people; `code` is for programs.

    `code` is that of the terminal event or of the gateway's answer. `field` names the parameter at fault, if any;
    `status` is the HTTP status, if any.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        request_id: str | None = None,
        field: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id
        self.field = field
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


class Refused(ClientError):
    """The request was not accepted, and a retry would not help: something in it is wrong or not allowed."""


class QueueFull(ClientError):
    """The gateways' limit of waiting and running requests was reached, for as long as the client was to wait."""


class Unavailable(ClientError):
    """No gateway, or no Redis, has answered for as long as the client was to wait. The request may continue."""


class Expired(ClientError):
    """The deadline passed before the request finished."""


class Cancelled(ClientError):
    """Somebody canceled the request."""


class Lost(ClientError):
    """Redis lost the request, and no process could queue it again."""


class DeadLetter(ClientError):
    """The request was set aside: its attempts made no progress."""


class EngineFailed(ClientError):
    """The engine failed on this request."""


class ReplyConflict(ClientError):
    """Redis lost acknowledged writes: the answer no longer matches what was delivered of it."""


class ReplyExpired(ClientError):
    """The request of this id has ended, and its reply is no longer kept."""


CONFLICT: Final = "reply_conflict"
EXPIRED_REPLY: Final = "reply_expired"
UNREACHABLE: Final = "unreachable"
"""Code of a failure that only this client has seen."""
NOT_ENDED: Final = "not_ended"
"""Code of Unavailable if the deadline has passed and the client could not learn how the request ended."""

_CLASSES: Final[dict[str, type[ClientError]]] = {
    ErrorCode.EXPIRED: Expired,
    ErrorCode.CANCELLED: Cancelled,
    ErrorCode.LOST: Lost,
    ErrorCode.DEAD_LETTER: DeadLetter,
    ErrorCode.ENGINE_ERROR: EngineFailed,
    CONFLICT: ReplyConflict,
    EXPIRED_REPLY: ReplyExpired,
}


def failure(
    code: str, message: str, *, request_id: str | None, field: str | None = None, status: int | None = None
) -> ClientError:
    """Return the error of a code that ends a request; Refused if the code says that it never began."""
    kind = _CLASSES.get(code, Refused)
    return kind(message, code=code, request_id=request_id, field=field, status=status)


def closed(request_id: str) -> ClientError:
    """Return the error of a closed client."""
    return ClientError("The client was closed.", code="closed", request_id=request_id)


def conflict(message: str, request_id: str) -> ReplyConflict:
    """Return the error for delivered content that is no longer part of the answer."""
    return ReplyConflict(message, code=CONFLICT, request_id=request_id)
