"""Reply logs as written by a worker, but without an engine: started event, tokens, terminal event."""

import random
import uuid
from collections.abc import Sequence

from orcastream.broker.attach import Attached, attach
from orcastream.broker.cleanup import finish
from orcastream.broker.errors import BrokerError
from orcastream.broker.link import Link
from orcastream.broker.reply_log import ReplyLog, append_many
from orcastream.schemas.codec import Form
from orcastream.schemas.events import Ending, Event, Output, Run, Started, Terminal, Usage
from orcastream.schemas.keys import DEFAULT_TENANT, Keys
from orcastream.schemas.stopping import FinishReason

_RETENTION_MS = 3_600_000
_VOCABULARY = 150_000


class Replies:
    """Any number of reply logs, written together: one event each per `advance`, as after one iteration."""

    def __init__(self, link: Link, keys: Keys, logs: list[ReplyLog], ids: list[str], tokens: Sequence[int]) -> None:
        self._link = link
        self._keys = keys
        self._logs = logs
        self._rng = random.Random(0)
        self._position = 0
        self._tokens = tokens
        self.ids = ids

    @classmethod
    async def begin(
        cls, link: Link, keys: Keys, count: int, *, tokens: Sequence[int] = range(_VOCABULARY)
    ) -> "Replies":
        """Attach to `count` new logs; their tokens are drawn from `tokens`."""
        ids = [f"cmpl-{uuid.uuid4().hex}" for _ in range(count)]
        started = Started("bench-1-abcdef01", keys.model, "default", "normal", "normal 1795270285012-0", 4711, 32)
        logs = []
        for request_id in ids:
            attached = await attach(
                link,
                keys,
                request_id=request_id,
                worker=started.worker,
                started=started,
                ref=None,
                form=Form.MSGPACK,
                log_expire_at_ms=0,
                retention_ms=_RETENTION_MS,
                owned=False,
            )
            if not isinstance(attached, Attached):
                raise RuntimeError(f"{request_id}: {attached}")
            logs.append(attached.log)
        return cls(link, keys, logs, ids, tokens)

    async def advance(self, tokens: int) -> None:
        """Append one event of `tokens` new tokens to every log, in one write."""
        drawn = tuple(self._rng.choices(self._tokens, k=tokens))
        await self._append(Output((Run(0, self._position, drawn),)))
        self._position += tokens

    async def end(self) -> None:
        """Append the terminal event to every log, and clean up."""
        endings = (Ending(FinishReason.LENGTH, self._position),)
        timings = {"queue_ms": 1.25, "prefill_ms": 10.5, "total_ms": 1500.75}
        terminal = Terminal(endings, Usage(32, self._position), timings=timings)
        await self._append(terminal)
        for request_id in self.ids:
            await finish(
                self._link,
                self._keys,
                request_id=request_id,
                tenant=DEFAULT_TENANT,
                ref=None,
                terminal=terminal,
                retention_ms=_RETENTION_MS,
            )

    async def _append(self, event: Event) -> None:
        failures: list[BrokerError | None] = await append_many([(log, event) for log in self._logs])
        for failure in failures:
            if failure is not None:
                raise failure
