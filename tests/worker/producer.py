"""A producer that knows only Redis and the wire contract: plain redis-py, no gateway."""

import secrets
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from orcastream.broker.fold import Fold
from orcastream.schemas.codec import Form
from orcastream.schemas.events import Event, EventId, Output, Started, decode_event
from orcastream.schemas.keys import GROUP, Keys
from orcastream.schemas.request import GenerationRequest, parse_payload
from tests.patience import PATIENCE_S
from tests.redis_cluster import plain_client
from tests.worker.worker_process import MODEL, WorkerProcess

LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True}
"""Sampling of an answer that lasts a second or more: time for something to happen in the middle of it."""


class Producer:
    """Posts requests by bare XADD and folds their reply logs."""

    def __init__(self, url: str) -> None:
        self.redis = plain_client(url, socket_timeout=30)
        self.keys = Keys(MODEL)
        self._forms = cycle(Form)

    def request(
        self,
        prompt: list[int],
        *,
        request_id: str = "",
        timeout_s: float = PATIENCE_S,
        form: Form | None = None,
        **payload: Any,
    ) -> GenerationRequest:
        """Return a request that the contract accepts; without a `form`, the forms alternate."""
        return GenerationRequest(
            request_id or secrets.token_hex(16),
            parse_payload({"prompt": prompt, "temperature": 0.0, **payload}),
            int((time.time() + timeout_s) * 1000),
            form=form or next(self._forms),
        )

    def post(self, prompt: list[int], **options: Any) -> str:
        """XADD a request to its lane and return its id."""
        request = self.request(prompt, **options)
        lane = self.keys.in_lane(self.keys.lane_of(request.id))
        self.redis.xadd(lane.requests("normal"), request.fields())  # type: ignore[arg-type]
        return request.id

    def add(self, fields: dict[str, Any], priority_class: str = "normal") -> str:
        """XADD any fields and return the entry id."""
        entry_id: bytes = self.redis.xadd(self.keys.requests(priority_class), fields)
        return entry_id.decode()

    def events(self, request_id: str) -> Iterator[tuple[EventId, Event]]:
        """Yield every entry of the reply log as it arrives, up to the terminal one."""
        key, last = self.keys.reply(request_id), "0-0"
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            for _, entries in self.redis.xread({key: last}, block=1000) or []:
                for raw_id, fields in entries:
                    last = raw_id.decode()
                    event = decode_event(fields)
                    yield EventId.parse(raw_id), event
                    if event.type in ("finished", "error"):
                        return
        raise AssertionError(f"no terminal event for {request_id} within {PATIENCE_S} s; last entry {last}")

    def read(self, request_id: str) -> Fold:
        """The whole reply, folded as a client would."""
        fold = Fold()
        for event_id, event in self.events(request_id):
            fold.feed(event_id, event)
        return fold

    def read_past_a_kill(self, request_id: str, workers: dict[str, WorkerProcess], after: int = 20) -> Fold:
        """As `read`, but kill the first of `workers` (by name) that writes it, `after` this number of token events.

        Another of the workers then ends the request.
        """
        fold, writers, seen = Fold(), [], 0
        for event_id, event in self.events(request_id):
            fold.feed(event_id, event)
            if isinstance(event, Started):
                writers.append(event.worker)
            elif isinstance(event, Output):
                seen += 1
                if seen == after:
                    workers[writers[-1]].kill()
        assert len(set(writers)) == 2, writers
        return fold

    def queue_is_empty(self) -> bool:
        """Whether every request was acknowledged and deleted."""
        streams = [self.keys.requests(name) for name in ("realtime", "high", "normal", "low")]
        return all(
            self.redis.xlen(key) == 0 and self.redis.xpending(key, GROUP)["pending"] == 0
            for key in streams
            if self.redis.exists(key)
        )

    def wait_empty(self) -> None:
        """Wait until the queue is empty: cleanup follows the terminal event."""
        give_up = time.monotonic() + PATIENCE_S
        while not self.queue_is_empty():
            assert time.monotonic() < give_up, "entries were left in the queue"
            time.sleep(0.01)
