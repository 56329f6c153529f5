"""The interface that carries out commands for this package: a link to one server, or a router over a cluster."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from orcastream.broker.scripts import Arg, Command, Script, ScriptCall

if TYPE_CHECKING:
    from orcastream.broker.link import Link


class Connection(ABC):
    """Open until a failure; after that every call raises LinkLost, and a new connection must be opened."""

    lost_reason: str | None = None
    """Why it is dead; None while it lives."""

    @abstractmethod
    async def call_many(self, commands: Sequence[Command | ScriptCall]) -> list[Any]:
        """Carry out several commands; error replies appear in the list as ResponseError.

        Commands on one key are carried out in order. A command without a key, such as TIME, goes to the server of the
        previous command, or of the next one.
        """

    @abstractmethod
    async def call_in_order(self, commands: Sequence[Command | ScriptCall]) -> list[Any]:
        """As `call_many`, but each command runs after the previous ones, whatever servers their keys are on.

        After a script that its server does not know, commands run twice: those after a script must be repeatable.
        """

    @abstractmethod
    def post(self, commands: Sequence[Command | ScriptCall]) -> None:
        """Send without waiting for replies, ahead of any later command on these keys; may be lost. Raises LinkLost."""

    @abstractmethod
    def post_along(self, commands: Sequence[Command | ScriptCall]) -> None:
        """As `post`, but together with the next write, which saves the server a wake-up, or a few milliseconds
        later."""

    @abstractmethod
    async def link_for(self, key: str) -> "Link":
        """Return the link that carries writes to `key`: an epoch lives on it. Raises LinkLost, ResponseError."""

    def is_moving(self, key: str) -> bool:
        """Whether `key` is on a node that its slot is still migrating to: writes there must follow an ASKING."""
        return False

    @abstractmethod
    async def another(self, key: str, *, name: str) -> "Link":
        """Open a new link to the server of `key`, for blocking commands; it ends with this connection.

        Raises LinkLost, ResponseError.
        """

    @abstractmethod
    async def wait_lost(self) -> str:
        """Wait until this is dead and return the reason."""

    @abstractmethod
    async def close(self) -> None:
        """Close it; commands in flight raise LinkLost."""

    @property
    def alive(self) -> bool:
        """Whether calls can still be made."""
        return self.lost_reason is None

    async def call(self, *args: Arg) -> Any:
        """Return the reply to one command. Raises ResponseError if refused, LinkLost if the outcome is unknown."""
        return _raised((await self.call_many([args]))[0])

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run a script; its reply, ResponseError or LinkLost as for `call`."""
        return _raised((await self.call_many([script.call(keys, args)]))[0])

    async def server_time_ms(self) -> int:
        """Return the server's clock in milliseconds of Unix time; in a cluster, that of any node."""
        return time_ms(await self.call("TIME"))


def time_ms(reply: Sequence[bytes]) -> int:
    """Return a reply to TIME in milliseconds."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def _raised(reply: Any) -> Any:
    if isinstance(reply, ResponseError):
        raise reply
    return reply
