"""Errors in OpenAI's shape, and the status of each."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from orcastream.broker.errors import IdInUse, NotAdmitted, Refusal, ReplyExpired
from orcastream.broker.files.file_store import FilesFull
from orcastream.gateway.http.url_secrets import without_keys
from orcastream.schemas.errors import ErrorCode, InvalidRequest, shown

_RETRY = {"Retry-After": "1"}
_FINAL = {"x-should-retry": "false"}
"""OpenAI's clients retry some statuses automatically: this header tells them that a retry would not help."""


STOPPING = "gateway_stopping"
"""The code of errors from a gateway that is stopping."""


class ApiError(Exception):
    """An error for the client: status, message, and the parameter it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        self.refused = True
        """False if the request was accepted and then ended with this error."""

    @property
    def is_fault(self) -> bool:
        """Whether the service is at fault: status 500 or higher."""
        return self.status >= 500

    @property
    def is_failure(self) -> bool:
        """Whether the service failed. A gateway that stops has not: its requests continue, and others serve them."""
        return self.is_fault and self.code != STOPPING

    def body(self) -> dict[str, Any]:
        """Return `{"error": ...}` as OpenAI writes it; the same inside a stream."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def invalid(error: InvalidRequest, code: str | None = None) -> ApiError:
    """400 for a violation of the contract, naming the parameter."""
    return ApiError(400, str(error), param=error.field, code=code or str(error.code))


def unsupported(name: str, value: object, allowed: str) -> ApiError:
    """400 for a parameter of OpenAI's API that is not implemented: refused, never ignored."""
    error = InvalidRequest(name, value, allowed)
    return ApiError(400, str(error), param=error.field, code="unsupported_parameter")


def model_not_found(name: str, served: Sequence[str]) -> ApiError:
    """404 for a model that this gateway does not serve."""
    names = ", ".join(map(repr, served))
    return ApiError(
        404,
        f"The model {shown(without_keys(name))} does not exist; served: {names}.",
        param="model",
        code="model_not_found",
    )


def not_found(request_id: str) -> ApiError:
    """404 for a request that does not exist or belongs to another tenant; the client cannot tell which."""
    return ApiError(404, f"No request {without_keys(request_id)!r} is known.", param="id", code="request_not_found")


def id_in_use(error: IdInUse) -> ApiError:
    """409: the client chose an id that another tenant uses."""
    return ApiError(409, str(error), param="request_id", code="id_in_use", headers=_FINAL)


def reply_expired(error: ReplyExpired) -> ApiError:
    """410: the request of this id has ended, and its reply is no longer kept."""
    return ApiError(410, str(error), param="request_id", code="reply_expired", headers=_FINAL)


def unauthorized() -> ApiError:
    """401 for a missing or wrong key."""
    return ApiError(
        401,
        "Incorrect or missing API key: send it as 'Authorization: Bearer <key>'.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def body_too_large(limit_bytes: int) -> ApiError:
    """413 for a body beyond the limit."""
    return ApiError(413, f"The request body is too large; allowed: at most {limit_bytes} bytes.", code="body_too_large")


NOT_ADMITTED: Final = {
    Refusal.REQUESTS: (
        "queue_full",
        "The queue is full: {found} requests of this class wait or run, allowed: {allowed}.",
    ),
    Refusal.TOKENS: (
        "queue_tokens_full",
        "The queue is full: with this request its class would ask for {found} tokens, allowed: {allowed}.",
    ),
    Refusal.WAIT: (
        "wait_too_long",
        "The queue is too long: this request is expected to wait for {found} ms, its deadline or the service allows "
        "{allowed} ms.",
    ),
    Refusal.RATE: ("rate_limit_exceeded", "Too many requests: {allowed} a minute are allowed."),
    Refusal.CONCURRENCY: (
        "concurrency_limit_exceeded",
        "Too many requests at once: {found} of yours wait or run, allowed: {allowed}.",
    ),
    Refusal.SHARE: (
        "queue_share_full",
        "Your share of the queue is full: {found} requests of yours wait or run, allowed: {allowed}.",
    ),
    Refusal.TOKEN_SHARE: (
        "queue_token_share_full",
        "Your share of the queue is full: with this request yours would ask for {found} tokens, allowed: {allowed}.",
    ),
}
"""Code and message of each reason to refuse a request for now."""


def not_admitted(error: NotAdmitted) -> ApiError:
    """429: the client may retry once there is room, in about the time that the header says."""
    code, message = NOT_ADMITTED[error.reason]
    retry_s = max(1, math.ceil(error.retry_after_ms / 1000))
    return ApiError(
        429,
        f"{message.format(found=error.found, allowed=error.allowed)} Try again in {retry_s} s.",
        kind="rate_limit_error",
        code=code,
        headers={"Retry-After": str(retry_s)},
    )


def file_not_found(file_id: str, param: str = "id") -> ApiError:
    """404 for a file that does not exist, has expired, or belongs to another tenant."""
    return ApiError(404, f"No file {shown(without_keys(file_id))} is known.", param=param, code="file_not_found")


def file_unreadable(file_id: str, param: str = "id") -> ApiError:
    """409 for a file that exists, but not in this version's format: a retry does not help."""
    message = f"The file {shown(without_keys(file_id))} cannot be read: another version made it, or it is damaged."
    return ApiError(409, message, param=param, code="file_unreadable", headers=_FINAL)


def files_full(error: FilesFull) -> ApiError:
    """429: uploads are refused until the tenant deletes files or files expire."""
    message = f"Your files would be {error.found} {error.what}, allowed: {error.allowed}. Delete some."
    return ApiError(429, message, kind="rate_limit_error", code="files_full", headers=_FINAL)


def file_lost_meanwhile() -> ApiError:
    """503 for an upload of which Redis has lost or expired a part before its end."""
    return unavailable("Redis lost a part of the file while it was uploaded: upload it again.", "file_lost")


def batch_not_found(batch_id: str) -> ApiError:
    """404 for a batch that does not exist, is no longer kept, or belongs to another tenant."""
    return ApiError(404, f"No batch {shown(without_keys(batch_id))} is known.", param="id", code="batch_not_found")


def batch_unreadable(batch_id: str) -> ApiError:
    """409 for a batch that exists, but not in this version's format: a retry does not help."""
    message = f"The batch {shown(without_keys(batch_id))} cannot be read: another version made it, or it is damaged."
    return ApiError(409, message, param="id", code="batch_unreadable", headers=_FINAL)


def batches_full(allowed: int) -> ApiError:
    """429: the tenant must wait until some of its batches have ended."""
    message = f"{allowed} batches of yours have not ended, and no more are allowed."
    return ApiError(429, message, kind="rate_limit_error", code="batches_full", headers=_FINAL)


def batch_ended(status: str) -> ApiError:
    """409 for a batch that has already ended and cannot be canceled."""
    return ApiError(409, f"The batch has ended as {status}.", param="id", code="batch_ended", headers=_FINAL)


def unavailable(reason: str, code: str = "unavailable") -> ApiError:
    """503: Redis or all workers are unavailable, or this gateway is stopping."""
    return ApiError(503, reason, kind="server_error", code=code, headers=_RETRY)


def crashed(what: str) -> ApiError:
    """500: this gateway failed unexpectedly; its log says where."""
    return ApiError(500, f"The gateway failed on this {what}.", kind="server_error", code="internal_error")


def gateway_stopping(message: str = "This gateway is stopping.") -> ApiError:
    """503: this gateway is stopping; another one must serve the request."""
    return unavailable(message, STOPPING)


def no_worker(model: str) -> ApiError:
    """503: no worker would compute the request."""
    return unavailable(f"No worker of the model {model!r} is alive.", "no_worker")


def reply_conflict() -> ApiError:
    """409: tokens already delivered differ from the log (Redis lost writes), so the stream cannot continue."""
    return ApiError(
        409,
        "The reply changed: tokens that were already delivered are no longer part of it.",
        kind="server_error",
        code="reply_conflict",
        headers=_FINAL,
    )


_ENDED = {
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.UNSUPPORTED_VERSION: 400,
    ErrorCode.EXPIRED: 504,
    ErrorCode.CANCELLED: 409,
    ErrorCode.LOST: 500,
    ErrorCode.DEAD_LETTER: 500,
    ErrorCode.ENGINE_ERROR: 500,
}


def ended(code: ErrorCode, message: str | None, field: str | None) -> ApiError:
    """Return the error that a terminal event carries."""
    status = _ENDED[code]
    return ApiError(
        status,
        message or str(code),
        kind="invalid_request_error" if status == 400 else "server_error",
        param=field,
        code=str(code),
        headers=_FINAL,
    )
