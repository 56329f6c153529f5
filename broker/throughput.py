"""What workers serve: each reports it regularly, so that enqueue.lua can estimate a request's wait."""

import json
from dataclasses import asdict, dataclass, replace

from orcastream.broker.connection import Connection
from orcastream.broker.errors import require
from orcastream.broker.scripts import THROUGHPUT
from orcastream.schemas.keys import Keys


@dataclass(frozen=True, slots=True)
class Throughput:
    """One worker's report.

    `tokens_per_s`: declared tokens (`Payload.declared_tokens`) that it completes per second while requests wait for it.
    `token_ms`: time per declared token of one answer under that load. `done`: declared tokens of its running requests
    that are already done. `class_weight`: the one that it claims by.
    """

    tokens_per_s: float
    token_ms: float
    done: int
    class_weight: float

    def shared(self, num_lanes: int) -> "Throughput":
        """Return each lane's part of it, assuming that all lanes are equally long."""
        return replace(self, tokens_per_s=self.tokens_per_s / num_lanes, done=self.done // num_lanes)


class ThroughputReports:
    """One worker's field in the hash that all workers of a model share. Calls raise LinkLost, Unwritable."""

    def __init__(self, link: Connection, keys: Keys, worker: str) -> None:
        self._link = link
        self._keys = keys
        self._worker = worker
        self._told = True

    async def tell(self, throughput: Throughput | None, *, ttl_ms: int) -> None:
        """Report, for `ttl_ms`; None: this worker has no throughput to report, which is written once."""
        if throughput is None and not self._told:
            return
        text = "" if throughput is None else json.dumps(asdict(throughput.shared(self._keys.queue_lanes)))
        lanes = self._keys.each_lane
        require(
            await self._link.call_many(
                [THROUGHPUT.call([keys.throughput], [self._worker, ttl_ms, text]) for keys in lanes]
            )
        )
        self._told = throughput is not None
