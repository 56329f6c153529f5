"""A cluster as one connection: every command goes to the node that serves its key, over one link per node."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, ClassVar, Final

from redis.exceptions import ClusterDownError, ResponseError

from orcastream.broker.address import RedisAddress
from orcastream.broker.connection import Connection
from orcastream.broker.errors import LinkLost
from orcastream.broker.link import Link
from orcastream.broker.resp import pack_many, parse_error
from orcastream.broker.scripts import Command, ScriptCall
from orcastream.broker.slots import Node, Redirection, SlotMap, keys_of

ASK_TIMEOUT_S: Final = 1.0
"""How long a node may take to list the cluster's nodes, or to accept a connection, while commands wait for it."""
PAUSE_S: Final = 0.2
"""After a failed attempt, a node is left alone for this long."""
_DOWN_S: Final = 10.0
"""After a failed attempt, commands for a node are refused for this long while it is tried again. An attempt may take
5 s."""
_HOPS: Final = 5
"""How many redirections a command follows; a consistent cluster needs one or two."""
_CLOSED: Final = "closed"


class Router(Connection):
    """Opens links as keys need them. When one of them breaks, the router is dead, as a link would be: the outcome of
    everything in flight on any link is unknown, and every epoch is over.

    An unreachable node breaks nothing: its commands get CLUSTERDOWN replies, as from other nodes, and callers may retry
    them. Redirections are followed: the node that sent one did nothing.
    """

    _heard_of: ClassVar[dict[tuple[tuple[str, int], ...], tuple[Node, ...]]] = {}
    """Seed nodes → the nodes in the last answer, which are asked when the seed nodes are gone."""
    _doubted: ClassVar[dict[Node, float]] = {}
    """When a node last reported the cluster as down (loop time). A node that is cut off does not know its successors,
    so it is asked last, also by new connections whose address names it first."""

    def __init__(self, address: RedisAddress, **options: Any) -> None:
        """`options` as for `Link.open_with`, for every link. Use `open`."""
        self._address = address
        self._options = options
        self._slots = SlotMap(Node(*host) for host in address.hosts)
        self._links: dict[Node, Link] = {}
        self._beside: list[Link] = []
        self._opening: dict[Node, asyncio.Task[Link]] = {}
        self._unreachable: dict[Node, tuple[float, str]] = {}
        """Nodes without a link: when an attempt to open one last failed, or took too long (loop time), and why."""
        self._moving: dict[str, Node] = {}
        """Keys that are not on their slot's node, according to an ASK."""
        self._refreshing: asyncio.Task[None] | None = None
        self._doubted_at = float("-inf")
        self._watches: set[asyncio.Task[None]] = set()
        self._lost = asyncio.Event()

    @classmethod
    async def open(cls, address: RedisAddress, **options: Any) -> "Router":
        """Query the nodes and their slots. Raises as `refresh`; ResponseError also if this is not a cluster."""
        router = cls(address, **options)
        await router.refresh()
        return router

    async def refresh(self, first: Node | None = None) -> None:
        """Query again which node serves which slots; `first` is asked first.

        Raises LinkLost if no node answers, ResponseError if those that do refuse.
        """
        reasons: list[str] = []
        refused: ResponseError | None = None
        heard_of = self._heard_of.get(self._address.hosts, ())
        nodes = dict.fromkeys([*self._links, *self._slots.nodes, *heard_of])
        others = [node for node in nodes if node != first]
        others.sort(key=lambda node: self._doubted.get(node, float("-inf")))
        for node in [*filter(None, [first]), *others]:
            try:
                slots = await self._slots_by(node)
            except LinkLost as error:
                reasons.append(f"{node}: {error}")
            except ResponseError as error:  # it may be loading, while other nodes know
                refused = refused or error
            else:
                if slots:
                    self._learned(slots, node)
                    return
                reasons.append(f"{node}: it belongs to no cluster, or to one that serves nothing")
        if refused is not None:
            raise refused
        raise LinkLost(f"no node of the cluster answers ({'; '.join(dict.fromkeys(reasons))})")

    def doubt(self, node: Node) -> None:
        """Refresh soon: a node reports the cluster as down, so a node that others can reach may have replaced it."""
        now = self._doubted[node] = asyncio.get_running_loop().time()
        if now - self._doubted_at >= PAUSE_S:
            self._doubted_at = now
            self._refresh_soon()

    def _learned(self, slots: Sequence[Any], node: Node) -> None:
        self._slots.learn(slots, node)
        self._heard_of[self._address.hosts] = tuple(self._slots.nodes)
        self._moving.clear()
        masters = {str(master) for master in self._slots.masters}
        for link in self._beside:
            if link.server not in masters:  # a command blocking there might wait forever
                link.drop(f"{link.server} serves nothing any more")

    async def call_many(self, commands: Sequence[Command | ScriptCall]) -> list[Any]:
        """See Connection."""
        replies: list[Any] = [None] * len(commands)
        keys, left = keys_of(commands), list(range(len(commands)))
        if not any(keys):
            await self._open_any()
        for _ in range(_HOPS):
            places: dict[tuple[Node | None, bool], list[int]] = {}
            for index in left:
                places.setdefault(self._place(keys[index]), []).append(index)
            answers = await self._gathered([(*place, [commands[i] for i in ours]) for place, ours in places.items()])
            left = []
            for ((node, _), ours), found in zip(places.items(), answers, strict=True):
                for index, reply in zip(ours, found, strict=True):
                    replies[index] = reply
                    if node is not None and self._redirected(keys[index], node, reply):
                        left.append(index)
            if not left:
                break
            left.sort()
        return replies

    async def call_in_order(self, commands: Sequence[Command | ScriptCall]) -> list[Any]:
        """See Connection."""
        replies: list[Any] = []
        placed = zip(map(self._place, keys_of(commands)), commands, strict=True)
        for _, run in groupby(list(placed), key=lambda one: one[0]):
            replies += await self.call_many([command for _, command in run])
        return replies

    def post(self, commands: Sequence[Command | ScriptCall]) -> None:
        """See Connection. Commands for a node without a link are dropped."""
        for link, command in self._posted(commands):
            link.post([command])

    def post_along(self, commands: Sequence[Command | ScriptCall]) -> None:
        """See Connection. Commands for a node without a link are dropped."""
        for link, command in self._posted(commands):
            link.post_along([command])

    def _posted(self, commands: Sequence[Command | ScriptCall]) -> Iterator[tuple[Link, Command | ScriptCall]]:
        for key, command in zip(keys_of(commands), commands, strict=True):
            node, is_moving = self._place(key)
            link = None if node is None else self._links.get(node)
            if link is not None and not is_moving:
                yield link, command

    async def link_for(self, key: str) -> Link:
        """See Connection."""
        node, _ = self._place(key)
        if node is None:
            raise _nobody()
        return await self._link_to(node)

    def is_moving(self, key: str) -> bool:
        """See Connection."""
        return key in self._moving

    def node_of(self, key: str | bytes) -> Node | None:
        """Return the node that serves the slot of `key`; None if none does."""
        return self._slots.master_of(key)

    async def another(self, key: str, *, name: str) -> Link:
        """See Connection."""
        node = self.node_of(key)
        if node is None:
            raise _nobody()
        return await self.another_to(node, name=name)

    async def another_to(self, node: Node, *, name: str) -> Link:
        """Open a new link to a node, for blocking commands. Raises LinkLost, ResponseError."""
        options = {**self._options, "name": name, "blocking": True}
        link = await Link.open_with({**self._address.options, "host": node.host, "port": node.port}, **options)
        if self.lost_reason is not None:
            await link.close()
            raise LinkLost(self.lost_reason)
        self._beside = [*(one for one in self._beside if one.alive), link]
        return link

    async def wait_lost(self) -> str:
        """See Connection."""
        await self._lost.wait()
        return self.lost_reason or ""

    async def close(self) -> None:
        """See Connection."""
        self._die(_CLOSED)
        tasks = [task for task in (*self._opening.values(), *self._watches, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(link.close() for link in self._links.values()), return_exceptions=True)

    def _place(self, key: str | None) -> tuple[Node | None, bool]:
        """Return the node for a command on `key`, and whether the command must follow an ASKING there."""
        if key is None:
            return next(iter(self._links), None) or self._slots.any_master(), False
        if key in self._moving:
            return self._moving[key], True
        return self._slots.master_of(key), False

    def _redirected(self, key: str | None, node: Node, reply: Any) -> bool:
        """Record a node's reply that a key is elsewhere; False if it replied anything else."""
        redirection = Redirection.find(reply, node)
        if redirection is None or key is None:
            if isinstance(reply, ClusterDownError):
                self.doubt(node)
            return False
        if redirection.asks:
            self._moving[key] = redirection.node
        else:
            self._moving.clear()
            self._slots.moved(redirection)
            self._refresh_soon(node)
        return True

    def _refresh_soon(self, first: Node | None = None) -> None:
        """Refresh, because where one slot has moved, others may have too; `first` is the node that reported it."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh_if_possible(first))

    async def _gathered(
        self, parts: Sequence[tuple[Node | None, bool, Sequence[Command | ScriptCall]]]
    ) -> list[list[Any]]:
        if len(parts) == 1:
            return [await self._perform(*parts[0])]
        answers = await asyncio.gather(*(self._perform(*part) for part in parts), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _perform(self, node: Node | None, is_moving: bool, commands: Sequence[Command | ScriptCall]) -> list[Any]:
        if node is None:
            self._refresh_soon()
            return [_nobody()] * len(commands)
        try:
            link = await self._link_to(node)
        except ResponseError as error:
            return [error] * len(commands)
        if not is_moving:
            return await link.call_in_order(commands)
        plain = [command.by_text() if isinstance(command, ScriptCall) else command for command in commands]
        asked: list[Command] = [part for command in plain for part in (("ASKING",), command)]
        replies: list[Any] = await link.send(pack_many(asked), len(asked))
        return replies[1::2]

    async def _link_to(self, node: Node) -> Link:
        """Return the link to a node. Raises LinkLost if the router is dead, ResponseError if the node is down."""
        if self.lost_reason is not None:
            raise LinkLost(self.lost_reason)
        link = self._links.get(node)
        if link is not None:
            return link
        loop = asyncio.get_running_loop()
        failed_at, why = self._unreachable.get(node, (float("-inf"), ""))
        if node not in self._opening and loop.time() - failed_at >= PAUSE_S:
            opening = self._opening[node] = asyncio.create_task(self._open(node))
            opening.add_done_callback(lambda done: self._opened(node, done))
        if loop.time() - failed_at < _DOWN_S:  # commands for other nodes do not wait until it answers again
            raise _unreachable(node, why)
        opening = self._opening[node]
        await asyncio.wait([opening], timeout=ASK_TIMEOUT_S)
        if not opening.done():
            why = f"no answer within {ASK_TIMEOUT_S} s"
            self._unreachable[node] = loop.time(), why
            raise _unreachable(node, why)
        return opening.result()

    async def _open_any(self) -> None:
        """Open a link for commands without a key, unless there is one: any node that can be reached may answer them."""
        for node in () if self._links else self._slots.masters:
            with suppress(ResponseError):
                await self._link_to(node)
                return

    def _opened(self, node: Node, opening: asyncio.Task[Link]) -> None:
        self._opening.pop(node, None)
        if not opening.cancelled():
            opening.exception()  # marked as seen: its callers may be gone

    async def _open(self, node: Node) -> Link:
        try:
            link = await Link.open_with(
                {**self._address.options, "host": node.host, "port": node.port}, **self._options
            )
        except LinkLost as error:
            self._unreachable[node] = asyncio.get_running_loop().time(), str(error)
            await self._refresh_if_possible()
            raise _unreachable(node, str(error)) from None
        if self.lost_reason is not None:
            await link.close()
            raise LinkLost(self.lost_reason)
        self._links[node] = link
        self._unreachable.pop(node, None)
        watch = asyncio.create_task(self._watch(link))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return link

    async def _refresh_if_possible(self, first: Node | None = None) -> None:
        """Refresh, because an unreachable node may have been replaced."""
        with suppress(LinkLost, ResponseError):  # the next attempt refreshes again
            await self.refresh(first)

    async def _slots_by(self, node: Node) -> list[Any]:
        link = self._links.get(node)
        if link is not None:
            return list(await link.call("CLUSTER", "SLOTS"))
        options = {**self._address.options, "host": node.host, "port": node.port}
        link = await Link.open_with(options, reply_timeout_s=ASK_TIMEOUT_S)
        try:
            return list(await link.call("CLUSTER", "SLOTS"))
        finally:
            await link.close()

    async def _watch(self, link: Link) -> None:
        self._die(f"{link.server}: {await link.wait_lost()}")

    def _die(self, reason: str) -> None:
        if self.lost_reason is None:
            self.lost_reason = reason
            self._lost.set()
            for link in (*self._links.values(), *self._beside):
                link.drop(reason)


def _unreachable(node: Node, why: str) -> ResponseError:
    return parse_error(f"CLUSTERDOWN {node} cannot be reached: {why}")


def _nobody() -> ResponseError:
    return parse_error("CLUSTERDOWN no node serves the slot")
