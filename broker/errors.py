"""What can go wrong between this process and Redis, and between writers of one reply log."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from redis.exceptions import ResponseError

WRONG_TYPE: Final = "WRONGTYPE"
"""Error code of a key that holds something else than the command is for: about that key, not about the server."""


NO_REPLICAS: Final = "NOREPLICAS"
"""Error code of a master that takes no writes for want of replicas: with `min-replicas-to-write` each that was just
promoted is one, until others have followed it."""
PASSING: Final = frozenset(
    {"LOADING", "READONLY", NO_REPLICAS, "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK"}
)
"""Error codes of a server that does nothing now, while it, or the one that takes its place, soon will."""


class BrokerError(Exception):
    """Base of every error of this package (a server's own error replies are `redis.exceptions.ResponseError`)."""


class LinkLost(BrokerError):
    """The connection is gone. Whether the command was carried out is unknown: never repeat it blindly."""


class Closed(BrokerError):
    """This process closed its connection, and opens no other."""


class Refusal(StrEnum):
    """Why a request is not accepted now."""

    REQUESTS = "requests"
    """As many requests of its class wait and run as are allowed."""
    TOKENS = "tokens"
    """What waits and runs in its class asks for as many tokens as are allowed."""
    WAIT = "wait"
    """It is expected to wait for longer than it may. [ms]"""
    RATE = "rate"
    """Its tenant has sent as many requests in a minute as it may."""
    CONCURRENCY = "concurrency"
    """As many requests of its tenant wait and run as are allowed."""
    SHARE = "share"
    """As many requests of its tenant wait and run as its share of the queue holds."""
    TOKEN_SHARE = "token_share"
    """What waits and runs of its tenant asks for as many tokens as its share of the queue holds."""


class NotAdmitted(BrokerError):
    """The terms of a request are not met, and nothing was written. It may be tried again after `retry_after_ms`."""

    def __init__(self, reason: Refusal, found: int, allowed: int, retry_after_ms: int) -> None:
        super().__init__(f"{reason}: got {found}, allowed: {allowed}")
        self.reason = reason
        self.found = found
        self.allowed = allowed
        self.retry_after_ms = retry_after_ms


class Fenced(BrokerError):
    """The reply log refused the write: a newer epoch stands in it, or it is gone. Attach again or drop the request."""


class Unwritable(BrokerError):
    """The server cannot write now (`code`: OOM, READONLY, LOADING, MISCONF, CLUSTERDOWN ...). Retry through attach."""

    def __init__(self, error: ResponseError) -> None:
        super().__init__(str(error))
        self.code = error_code(error)


class Unusable(Unwritable):
    """One reply log that can never be dealt with: its key is no stream, its ids are used up, reading it fails.

    It is about that request alone, and to try again is in vain: set the request aside.
    """


class NotOnDisk(BrokerError):
    """The server has not said in time that an entry is on its disk: it may be, or soon. To wait again does no harm."""


class LogBusy(BrokerError):
    """A second write to a reply log was begun while one was in flight, or after its end: an error of the caller."""


class Gap(BrokerError):
    """Tokens are missing between what was folded and what the log says next: read it again from the start."""

    def __init__(self, choice: int | None, expected: int, found: int) -> None:
        """`choice` None: log probabilities of the prompt are missing."""
        where = "the prompt" if choice is None else f"choice {choice}"
        super().__init__(f"{where}: the log goes on at token {found}, expected {expected}")
        self.choice = choice
        self.expected = expected
        self.found = found


class ReplyConflict(BrokerError):
    """The log says something else about tokens already delivered. Ends a client's stream with `reply_conflict`."""

    code = "reply_conflict"


class WrongTenant(BrokerError):
    """The reply log belongs to another tenant; to be shown as 'not found'."""


class IdInUse(BrokerError):
    """The id of a request is that of another tenant's."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"The request id {request_id!r} is in use; choose another.")
        self.request_id = request_id


class ReplyExpired(BrokerError):
    """The request of this id has ended, as `outcome` says, and its reply is not kept any more."""

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
    """What it means that the server refused a command on one reply log."""
    return Unusable(error) if error_code(error) == WRONG_TYPE else Unwritable(error)


def raise_if_moved(error: ResponseError) -> None:
    """LinkLost where a key that a link was opened for is on another node of the cluster by now."""
    if error_code(error) == "MOVED":
        raise LinkLost(f"another node serves the key: {error}") from None


def error_code(error: ResponseError) -> str:
    """The first word of a server's error reply, such as `OOM`; `ERR` where it is no code."""
    if error.status_code:
        return str(error.status_code)
    word = str(error).partition(" ")[0]
    return word if word.isupper() else "ERR"
