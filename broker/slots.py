"""Which node of a cluster serves which keys, and the redirections to other nodes."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Self

from redis.crc import key_slot
from redis.exceptions import ResponseError

from orcastream.broker.errors import error_code
from orcastream.broker.scripts import Command, ScriptCall

NUM_SLOTS: Final = 16384
_KEYLESS: Final = frozenset({"CLIENT", "CLUSTER", "INFO", "PING", "TIME"})
_KEY_THIRD: Final = frozenset({"XGROUP", "XINFO"})


class Node(NamedTuple):
    """The address of a cluster node."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Redirection(NamedTuple):
    """A node's reply that it does not serve a key, and did nothing.

    MOVED: `node` serves its slot from now on. ASK: the slot is migrating, and this key is already on `node`, which
    serves it after an ASKING.
    """

    node: Node
    slot: int
    asks: bool

    @classmethod
    def find(cls, reply: Any, asked: Node) -> Self | None:
        """Parse what `asked` replied; None if it is not a redirection."""
        if not isinstance(reply, ResponseError) or error_code(reply) not in ("MOVED", "ASK"):
            return None
        kind, slot, address = str(reply).split(" ")[:3]
        host, _, port = address.rpartition(":")
        return cls(Node(host or asked.host, int(port)), int(slot), kind == "ASK")


class SlotMap:
    """The known state of a cluster: the master of each slot, and the nodes, the seed `nodes` first."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._masters: list[Node | None] = [None] * NUM_SLOTS
        self._named = tuple(nodes)
        self.nodes: dict[Node, None] = dict.fromkeys(self._named)

    def learn(self, reply: Sequence[Any], asked: Node) -> None:
        """Apply a reply to CLUSTER SLOTS by the node `asked`."""
        masters: list[Node | None] = [None] * NUM_SLOTS
        self.nodes = dict.fromkeys(self._named)
        for first, last, *members in reply:
            found = [Node(member[0].decode() if member[0] else asked.host, member[1]) for member in members]
            masters[first : last + 1] = [found[0]] * (last + 1 - first)
            self.nodes.update(dict.fromkeys(found))
        self._masters = masters

    def moved(self, redirection: Redirection) -> None:
        """Apply a MOVED."""
        self._masters[redirection.slot] = redirection.node
        self.nodes[redirection.node] = None

    def master_of(self, key: str | bytes) -> Node | None:
        """Return the node that serves a key; None if none does."""
        return self._masters[key_slot(key.encode() if isinstance(key, str) else key)]

    @property
    def masters(self) -> set[Node]:
        """The nodes that serve any slot."""
        return {*filter(None, self._masters)}

    def any_master(self) -> Node | None:
        """Return any node that serves a slot."""
        return next(filter(None, self._masters), None)


def key_of(command: Command | ScriptCall) -> str | None:
    """Return the first key of a command of this package, whose other keys share its slot; None if it has no key."""
    if isinstance(command, ScriptCall):
        return command.keys[0]
    name = command[0]
    if name in _KEYLESS:
        return None
    at = 2 if name in _KEY_THIRD else command.index("STREAMS") + 1 if name in ("XREAD", "XREADGROUP") else 1
    key = command[at]
    return key.decode() if isinstance(key, bytes) else str(key)


def keys_of(commands: Sequence[Command | ScriptCall]) -> list[str | None]:
    """Return the key that routes each command: its own, else the previous command's, else the first one."""
    keys = [key_of(command) for command in commands]
    last = next(filter(None, keys), None)
    return [last := key or last for key in keys]
