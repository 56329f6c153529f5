"""Reads replies: one connection and one XREAD for all of them; in a cluster, one connection per node."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from orcastream.broker.back_off import BackOff
from orcastream.broker.connect import connect
from orcastream.broker.connection import Connection
from orcastream.broker.ending import OnEnd
from orcastream.broker.errors import BrokerError, LinkLost, Unusable
from orcastream.broker.followed import START, FollowedLog
from orcastream.broker.link import Link, LinkObserver
from orcastream.broker.loss import LossCheck, Verdict, Watch
from orcastream.broker.node_readings import NodeReadings
from orcastream.broker.router import Router
from orcastream.broker.second_read import SecondReads, packed_read, unread
from orcastream.broker.subscription import Subscription
from orcastream.broker.unblock import unblock
from orcastream.schemas.events import EventId
from orcastream.schemas.keys import Keys

log = logging.getLogger(__name__)


class ReplyReader:
    """Reads any number of reply logs over one connection, reconnects automatically, and checks for losses.

    A second connection wakes the reading one up for new subscriptions and carries the checks. `who` is the worker name
    in the started events of requests that a check ends.
    """

    def __init__(
        self,
        url: str,
        keys: Keys,
        who: str,
        *,
        retention_ms: int,
        loss_check_s: float = 5.0,
        observer: LinkObserver | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        self._url = url
        self._keys = keys
        self._who = who
        self._observer = observer
        self._loss = LossCheck(keys, who, retention_ms=retention_ms, grace_s=0.9 * loss_check_s, on_end=on_end)
        self._loss_check_s = loss_check_s
        self._block_ms = int(min(2.0, loss_check_s / 2) * 1000)
        self._followed: dict[bytes, FollowedLog] = {}
        self._changed = asyncio.Event()
        self._reading = False
        self._blocked_client = 0
        self._helper: Connection | None = None
        self._nodes: NodeReadings | None = None
        """Reads the logs in a cluster."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._waking = self._checking = False
        self._task: asyncio.Task[None] | None = None
        self.connected = asyncio.Event()
        """Set while there is a connection."""

    async def start(self) -> None:
        """Start reading; does not wait for Redis."""
        self._task = asyncio.create_task(self._run(), name="reply-reader")

    async def close(self) -> None:
        """End all subscriptions and close the connections."""
        for followed in list(self._followed.values()):
            for subscription in list(followed.state.subscriptions):
                subscription.close()
        tasks = [task for task in (self._task, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def subscribe(self, watch: Watch) -> Subscription:
        """Follow a reply from its beginning; only `watch.tenant` may see it."""
        key = self._keys.reply(watch.request_id)
        followed = self._followed.get(key.encode())
        if followed is None or followed.state.is_over:
            followed = FollowedLog(watch, key, self._keys.model, asyncio.get_running_loop().time())
            self._followed[followed.key] = followed
        elif followed.watch.request is None and watch.request is not None:
            followed.watch = watch
        state = followed.state
        subscription = Subscription(state, watch.tenant, self._unsubscribe)
        state.subscriptions.add(subscription)
        self._changed.set()
        if self._nodes is not None:
            self._nodes.follow(followed)
        if self._reading and not self._waking:
            self._waking = True
            self._spawn(self._wake())
        return subscription

    def _unsubscribe(self, subscription: Subscription) -> None:
        key = self._keys.reply(subscription.request_id).encode()
        followed = self._followed.get(key)
        if followed is not None:
            followed.state.subscriptions.discard(subscription)
            if not followed.state.subscriptions:
                del self._followed[key]
                if self._nodes is not None:
                    self._nodes.leave(followed)

    async def _run(self) -> None:
        back_off = BackOff()
        while True:
            begun_s = time.monotonic()
            try:
                await self._connected_run()
            except (BrokerError, ResponseError, OSError) as error:
                if self.connected.is_set():
                    back_off.held(time.monotonic() - begun_s)
                log.warning("reply reader reconnects: %s", error)
            except Exception:  # all replies of this process are read here
                log.exception("reply reader failed; it reconnects")
            finally:
                self.connected.clear()
            await asyncio.sleep(back_off.failed())

    async def _connected_run(self) -> None:
        """Connect and read until something breaks. Raises LinkLost, ResponseError."""
        self._helper = await connect(self._url, name=f"{self._who}-helper", observer=self._observer)
        try:
            if isinstance(self._helper, Router):
                await self._read_nodes(self._helper)
            else:
                await self._read_all(self._helper)
        finally:
            await self._helper.close()
            self._helper = None

    async def _read_all(self, helper: Connection) -> None:
        """Read all logs over one link."""
        link = await helper.another("", name=f"{self._who}-replies")
        try:
            self._is_connected()
            await self._read(helper, link)
        finally:
            self._reading = False
            await link.close()

    async def _read_nodes(self, router: Router) -> None:
        """Read all logs over a link per node."""
        self._nodes = NodeReadings(router, f"{self._who}-replies", self._took)
        try:
            self._is_connected()
            for followed in self._followed.values():
                self._nodes.follow(followed)
            await self._nodes.run(lambda: self._check_losses(asyncio.get_running_loop().time()))
        finally:
            nodes, self._nodes = self._nodes, None
            await nodes.close()

    def _is_connected(self) -> None:
        self.connected.set()
        for followed in self._followed.values():
            followed.checked_at = float("-inf")

    async def _read(self, helper: Connection, link: Link) -> None:
        second_reads = SecondReads()
        while True:
            if not helper.alive:
                raise LinkLost("the reader's helper connection broke")
            self._check_losses(asyncio.get_running_loop().time())
            following = [one for one in self._followed.values() if not one.state.finished]
            self._changed.clear()
            if not following:
                await self._idle(link)
                continue
            await self._read_once(link, following, second_reads)

    async def _read_once(self, link: Link, following: Sequence[FollowedLog], second_reads: SecondReads) -> None:
        """Wait for entries, and take them."""
        asked_from = {one.key: one.last_id for one in following}
        twice = second_reads.is_due(len(following))
        self._reading = True
        self._blocked_client = link.client_id
        replies = await link.send(packed_read(following, self._block_ms, twice=twice), 1 + twice)
        self._reading = False
        first, *second = [() if isinstance(reply, ResponseError) else reply or () for reply in replies]
        self._take_new(first, asked_from)
        more = [self._take_new(reply, asked_from) for reply in second]
        refused = [reply for reply in replies if isinstance(reply, ResponseError)]
        if refused:
            await self._refused(link, following, refused[0])
        elif twice:
            second_reads.came(len(first), more=any(more))
        else:
            second_reads.came_alone(len(first))

    def _take_new(self, reply: Sequence[Any], asked_from: Mapping[bytes, bytes]) -> bool:
        """Take what is new in the reply to a read of all logs; return whether anything is."""
        is_news = False
        for key, entries in reply:
            followed = self._followed.get(key)
            if followed is not None and (new := unread(entries, asked_from[key], followed.last_id)):
                self._took(followed, new)
                is_news = True
        return is_news

    def _took(self, followed: FollowedLog, entries: Sequence[Any]) -> None:
        """Fold the entries read from one log; any failure ends this reply alone."""
        followed.checked_at = asyncio.get_running_loop().time()
        try:
            for entry in entries:
                if not followed.take(entry):
                    return
        except Exception:
            log.exception("reply log of %s", followed.watch.request_id)
            followed.unreadable("its reply log cannot be read")

    async def _idle(self, link: Link) -> None:
        """Wait for a subscription, but notice a lost connection."""
        waiting = [asyncio.ensure_future(self._changed.wait()), asyncio.ensure_future(link.wait_lost())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiting:
                waiter.cancel()
        if not link.alive:
            raise LinkLost(link.lost_reason)

    async def _refused(self, link: Link, following: Sequence[FollowedLog], error: ResponseError) -> None:
        """Keep one key that is not a stream from stopping all other logs."""
        if not str(error).startswith("WRONGTYPE"):
            raise error
        types = await link.call_many([("TYPE", followed.key) for followed in following])
        for followed, kind in zip(following, types, strict=True):
            if kind not in (b"stream", b"none"):
                followed.unreadable("its reply log is not a stream")

    async def _wake(self) -> None:
        """Unblock the XREAD in flight until the next one, with the new subscriptions, is under way."""
        try:
            if self._helper is not None:
                await unblock(await self._helper.link_for(""), self._blocked_client, self._changed.is_set)
        except LinkLost:
            pass  # the reading link breaks as well, or its XREAD times out
        finally:
            self._waking = False

    def _check_losses(self, now: float) -> None:
        if self._checking or self._helper is None:
            return
        due = [one for one in self._followed.values() if now - one.checked_at >= self._loss_check_s]
        due = [one for one in due if not one.state.finished]
        if due:
            self._checking = True
            for followed in due:
                followed.checked_at = now
            self._spawn(self._check_all(self._helper, due))

    async def _check_all(self, helper: Connection, due: Sequence[FollowedLog]) -> None:
        try:
            for followed in due:
                await self._check_one(helper, followed)
        except BrokerError as error:
            log.warning("loss check: %s", error)
        finally:
            self._checking = False

    async def _check_one(self, helper: Connection, followed: FollowedLog) -> None:
        """Check one request; its defects do not stop the other checks. Raises LinkLost, Unwritable."""
        request_id, read_to = followed.watch.request_id, followed.last_id
        try:
            verdict = await self._loss.check(helper, followed.watch)
            is_shorter = await _ends_before(helper, followed.key, read_to)
        except Unusable as error:
            followed.unreadable(f"its reply log cannot be used: {error}")
        except BrokerError:
            raise
        except ResponseError as error:
            log.warning("loss check of %s: %s", request_id, error)
        except Exception:
            log.exception("loss check of %s", request_id)
        else:
            if verdict is Verdict.UNKNOWN:
                followed.unreadable("nothing is known of it")
            elif not followed.state.finished and (verdict is Verdict.ENDED or is_shorter):
                followed.last_id = START  # what is in the log will not come: read again

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _ends_before(link: Connection, log_key: bytes, read_to: bytes) -> bool:
    """Whether a log has no entry as new as `read_to`, which was read: the successor of a server that was cut off, but
    continued to accept writes, has only its own entries, and they may all be older.
    """
    if read_to == START:
        return False
    newest = await link.call("XREVRANGE", log_key, "+", "-", "COUNT", 1)
    return not newest or EventId.parse(newest[0][0]) < EventId.parse(read_to)
