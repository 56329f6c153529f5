"""An outside view of one model's service, for people: its queue and its workers' own reports."""

from collections.abc import Sequence
from dataclasses import dataclass

from orcastream.broker.connection import Connection
from orcastream.broker.errors import require
from orcastream.broker.presence import WorkerInfo, list_workers
from orcastream.broker.queue_state import QueueState, read_queue_state
from orcastream.schemas.keys import Keys


@dataclass(frozen=True, slots=True)
class Overview:
    """The overview. `workers` are those that report, and those that do not but hold requests; `dead_letters` is their
    number. `time_ms` is the server's clock; Unix time.
    """

    time_ms: int
    queue: QueueState
    workers: Sequence[WorkerInfo]
    dead_letters: int


async def read_overview(link: Connection, keys: Keys) -> Overview:
    """Read it in a few round trips, none of which scans a stream. Raises LinkLost, ResponseError, Unwritable."""
    queue = await read_queue_state(link, keys)
    listed = await list_workers(link, keys)
    workers = [worker for worker in listed if worker.alive or worker.pending or not worker.readable]
    letters = await link.call_many([("XLEN", lane.dead) for lane in keys.each_lane])
    require(letters)
    return Overview(await link.server_time_ms(), queue, workers, sum(letters))
