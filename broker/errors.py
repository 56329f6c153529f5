"""The errors between this process and Redis, and between writers of one reply log."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from redis.exceptions import ResponseError

WRONG_TYPE: Final = "WRONGTYPE"
"""Error code for a key of the wrong type: it concerns that key, not the server."""


NO_REPLICAS: Final = "NOREPLICAS"
"""Error code of a master that refuses writes for lack of replicas: with `min-replicas-to-write` that is the case
after each promotion, until other servers follow the new master."""
PASSING: Final = frozenset(
    {"LOADING", "BUSY", "READONLY", NO_REPLICAS, "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK"}
)
"""Error codes of a server that cannot serve now, while it or its successor soon will."""
_NO_LEASES: Final = ("BUSY", "CLUSTERDOWN", "MISCONF", NO_REPLICAS, "TRYAGAIN")
"""Error codes of a server that keeps its connections but renews no leases (out of memory, it still renews them)."""


class BrokerError(Exception):
    """Base of every error of this package (a server's own error replies are `redis.exceptions.ResponseError`)."""


class LinkLost(BrokerError):
    """The connection is gone. Whether the command was carried out is unknown: never repeat it blindly."""


class Closed(BrokerError):
    """This process closed its connection, and opens no other."""


class Refusal(StrEnum):
    """Why a request is not accepted now."""

    REQUESTS = "requests"
    """The class has reached its limit of waiting and running requests."""
    TOKENS = "tokens"
    """The class has reached its limit of tokens asked for by waiting and running requests."""
    WAIT = "wait"
    """The expected wait is longer than allowed. [ms]"""
    RATE = "rate"
    """The tenant has reached its limit of requests per minute."""
    CONCURRENCY = "concurrency"
    """The tenant has reached its limit of waiting and running requests."""
    SHARE = "share"
    """The tenant has reached its share of the queue, in waiting and running requests."""
    TOKEN_SHARE = "token_share"
    """The tenant has reached its share of the queue, in tokens asked for by waiting and running requests."""


class NotAdmitted(BrokerError):
    """The terms of a request are not met, and nothing was written. It may be retried after `retry_after_ms`."""

    def __init__(self, reason: Refusal, found: int, allowed: int, retry_after_ms: int) -> None:
        super().__init__(f"{reason}: got {found}, allowed: {allowed}")
        self.reason = reason
        self.found = found
        self.allowed = allowed
        self.retry_after_ms = retry_after_ms


class Fenced(BrokerError):
    """The reply log refused the write: it has a newer epoch, or it is gone. Attach again or drop the request."""


class Unwritable(BrokerError):
    """The server cannot write now (`code`: OOM, READONLY, LOADING, MISCONF, CLUSTERDOWN ...). Retry through attach."""

    def __init__(self, error: ResponseError) -> None:
        super().__init__(str(error))
        self.code = error_code(error)


class Unusable(Unwritable):
    """One reply log that can never be used: its key is not a stream, its ids are used up, or reading it fails.

    It concerns that request alone, and retrying is futile: set the request aside.
    """


class NotOnDisk(BrokerError):
    """The server has not confirmed in time that an entry is on disk; it may be, now or soon. Waiting again is safe."""


class LogBusy(BrokerError):
    """A second write to a reply log began while one was in flight, or after its end: an error of the caller."""


class Gap(BrokerError):
    """Tokens are missing between the folded ones and the next ones in the log: read it again from the start."""

    def __init__(self, choice: int | None, expected: int, found: int) -> None:
        """`choice` None: log probabilities of the prompt are missing."""
        where = "the prompt" if choice is None else f"choice {choice}"
        super().__init__(f"{where}: the log continues at token {found}, expected {expected}")
        self.choice = choice
        self.expected = expected
        self.found = found


class ReplyConflict(BrokerError):
    """The log contradicts tokens already delivered. Ends a client's stream with `reply_conflict`."""

    code = "reply_conflict"


class WrongTenant(BrokerError):
    """The reply log belongs to another tenant; show it as 'not found'."""


class IdInUse(BrokerError):
    """The request id belongs to a request of another tenant, or for another model."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"The request id {request_id!r} is in use; choose another.")
        self.request_id = request_id


class ReplyExpired(BrokerError):
    """The request with this id has ended with `outcome`, and its reply is no longer stored."""

    def __init__(self, request_id: str, outcome: str) -> None:
        super().__init__(
            f"The request {request_id!r} has ended ({outcome}) and its reply is no longer kept; choose another id."
        )
        self.request_id = request_id


class UnknownRequest(BrokerError):
    """Nothing in Redis knows this request id."""


def require(replies: Iterable[Any]) -> None:
    """Raise Unwritable for the first error among the replies to a batch of commands."""
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise Unwritable(reply)


def refusal(error: ResponseError) -> Unwritable:
    """Return the error for a command on one reply log that the server refused."""
    return Unusable(error) if error_code(error) == WRONG_TYPE else Unwritable(error)


def raise_if_moved(error: ResponseError) -> None:
    """Raise LinkLost if a key that a link was opened for has moved to another node of the cluster."""
    if error_code(error) == "MOVED":
        raise LinkLost(f"another node serves the key: {error}") from None


def renews_nothing(error: ResponseError) -> bool:
    """Return whether a refusal says that the server renews no leases now."""
    return error_code(error) in _NO_LEASES


def error_code(error: ResponseError) -> str:
    """Return the code of a server's error reply, such as `OOM`; `ERR` if it has none."""
    if error.status_code:
        return str(error.status_code)
    word = str(error).partition(" ")[0]
    return word if word.isupper() else "ERR"
