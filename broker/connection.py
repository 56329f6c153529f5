"""What carries commands out, as all of this package sees it: one link to a server, or a router over a cluster's."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from orcastream.broker.scripts import Arg, Command, Script, ScriptCall

if TYPE_CHECKING:
    from orcastream.broker.link import Link


class Connection(ABC):
    """Open until something broke; then every call raises LinkLost, and a new one has to be opened."""

    lost_reason: str | None = None
    """Why it is dead; None while it lives."""

    @abstractmethod
    async def call_many(self, commands: Sequence[Command | ScriptCall]) -> list[Any]:
        """Carry out several commands; error replies stand in the list as ResponseError.

        Commands on one key are carried out in their order. One without a key, such as TIME, goes where the one before
        it goes, or the one after it.
        """

    @abstractmethod
    async def call_in_order(self, commands: Sequence[Command | ScriptCall]) -> list[Any]:
        """As `call_many`, and each command after those before it, whatever servers their keys are on."""

    @abstractmethod
    def post(self, commands: Sequence[Command | ScriptCall]) -> None:
        """Send what nobody waits for, ahead of any later command on these keys; it may be lost. Raises LinkLost."""

    @abstractmethod
    def post_along(self, commands: Sequence[Command | ScriptCall]) -> None:
        """As `post`, but together with what is sent next, which spares the server a wake-up, or some milliseconds
        later."""

    @abstractmethod
    async def link_for(self, key: str) -> "Link":
        """The link that carries what is written to `key`: an epoch lives on it. LinkLost, ResponseError without one."""

    def is_moving(self, key: str) -> bool:
        """Whether `key` is where its slot is only going to be: what is written to it there comes after an ASKING."""
        return False

    @abstractmethod
    async def another(self, key: str, *, name: str) -> "Link":
        """A new link to the server of `key`, for commands that block; it ends with this connection.

        Raises LinkLost, ResponseError.
        """

    @abstractmethod
    async def wait_lost(self) -> str:
        """Return the reason once this is dead."""

    @abstractmethod
    async def close(self) -> None:
        """End it; what is in flight raises LinkLost."""

    @property
    def alive(self) -> bool:
        """Whether calls can still be made."""
        return self.lost_reason is None

    async def call(self, *args: Arg) -> Any:
        """Carry out one command: its reply, ResponseError where the server says no, LinkLost where nobody knows."""
        return _raised((await self.call_many([args]))[0])

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run a script; its reply, ResponseError or LinkLost as for `call`."""
        return _raised((await self.call_many([script.call(keys, args)]))[0])

    async def server_time_ms(self) -> int:
        """The server's clock, milliseconds of Unix time; in a cluster that of one of them."""
        return time_ms(await self.call("TIME"))


def time_ms(reply: Sequence[bytes]) -> int:
    """A reply to TIME in milliseconds."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def _raised(reply: Any) -> Any:
    if isinstance(reply, ResponseError):
        raise reply
    return reply
