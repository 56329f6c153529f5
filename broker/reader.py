"""Reads replies: follows their logs, reconnects automatically, and checks for losses."""

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from redis.exceptions import ResponseError

from orcastream.broker.back_off import BackOff
from orcastream.broker.connect import connect
from orcastream.broker.connection import Connection
from orcastream.broker.ending import OnEnd
from orcastream.broker.errors import BrokerError, LinkLost
from orcastream.broker.followed import START, FollowedLog
from orcastream.broker.link import LinkObserver
from orcastream.broker.log_pages import newest_entry
from orcastream.broker.loss import LossCheck, Watch
from orcastream.broker.loss_checks import LossChecks
from orcastream.broker.node_readings import NodeReadings
from orcastream.broker.router import Router
from orcastream.broker.server_reading import ServerReading
from orcastream.broker.subscription import Subscription
from orcastream.schemas.events import EventId
from orcastream.schemas.keys import Keys

log = logging.getLogger(__name__)


class ReplyReader:
    """Reads any number of reply logs over one connection, in a cluster over one per node.

    Another connection wakes the reading one up for new subscriptions and carries the checks. `who` is the worker name
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
        loss = LossCheck(keys, who, retention_ms=retention_ms, grace_s=0.9 * loss_check_s, on_end=on_end)
        self._checks = LossChecks(loss, loss_check_s, self._read_again)
        self._block_ms = max(1, int(min(2.0, loss_check_s / 2) * 1000))
        self._followed: dict[FollowedLog, None] = {}
        self._reading: ServerReading | NodeReadings | None = None
        self._helper: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self.connected = asyncio.Event()
        """Set while there is a connection."""

    async def start(self) -> None:
        """Start reading; does not wait for Redis."""
        self._clock = asyncio.get_running_loop().time
        self._task = asyncio.create_task(self._run(), name="reply-reader")

    async def close(self) -> None:
        """End all subscriptions and close the connections."""
        for followed in list(self._followed):
            if followed.state.subscription is not None:
                followed.state.subscription.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def subscribe(self, watch: Watch) -> Subscription:
        """Follow a reply from its beginning; only `watch.tenant` may see it."""
        key = self._keys.reply(watch.request_id)
        followed = FollowedLog(watch, key, self._keys.model, asyncio.get_running_loop().time())
        self._followed[followed] = None
        if self._reading is not None:
            self._reading.follow(followed)
        leave, read_on = partial(self._leave, followed), partial(self._read_on, followed)
        lags = partial(self._lags, followed)
        return Subscription(followed.state, watch.tenant, on_close=leave, on_room=read_on, lags=lags)

    def _leave(self, followed: FollowedLog) -> None:
        self._followed.pop(followed, None)
        if self._reading is not None:
            self._reading.leave(followed)

    def _read_on(self, followed: FollowedLog) -> None:
        """Read more of a log, whose subscriber has taken everything."""
        followed.has_paused = True
        followed.look_at = 0
        if self._reading is not None and followed in self._followed:
            self._reading.follow(followed)

    async def _lags(self, followed: FollowedLog) -> bool:
        if self._helper is None:
            return False
        try:
            newest = await newest_entry(self._helper, followed.key)
        except (LinkLost, ResponseError):
            return False
        return newest is not None and EventId.parse(newest[0]) > EventId.parse(followed.last_id)

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
        helper = await connect(self._url, name=f"{self._who}-helper", observer=self._observer)
        try:
            reading = await self._open(helper)
            try:
                self._reading, self._helper = reading, helper
                self.connected.set()
                for followed in self._followed:
                    followed.checked_at = float("-inf")
                    reading.follow(followed)
                await reading.run(lambda: self._checks.begin(helper, self._followed))
            finally:
                self._reading = self._helper = None
                await reading.close()
                await self._checks.end()
        finally:
            await helper.close()

    async def _open(self, helper: Connection) -> ServerReading | NodeReadings:
        """Open a link for all logs, or in a cluster one per node that has any."""
        name = f"{self._who}-replies"
        if isinstance(helper, Router):
            return NodeReadings(helper, name, self._took)
        return ServerReading(helper, await helper.another("", name=name), self._took, block_ms=self._block_ms)

    def _read_again(self, followed: FollowedLog) -> None:
        """Read a log from its start, without waiting for the read under way."""
        followed.last_id, followed.look_at = START, 0
        if self._reading is not None and followed in self._followed:
            self._reading.follow(followed)

    def _took(self, followed: FollowedLog, entries: Sequence[Any]) -> None:
        """Fold the entries read from one log, as far as there is room; any failure ends this reply alone."""
        followed.begin_entries(self._clock())
        state = followed.state
        try:
            for entry in entries:
                if state.is_full or not followed.take(entry):
                    return
        except Exception:
            log.exception("reply log of %s", followed.watch.request_id)
            followed.unreadable("its reply log cannot be read")
