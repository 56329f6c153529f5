"""`orcastream requests cancel ID`: end a waiting or running request as `cancelled`."""

from collections.abc import Sequence

from orcastream.broker.cancelling import cancel_entry
from orcastream.broker.connection import Connection
from orcastream.broker.ending import Ender
from orcastream.broker.origin import read_request
from orcastream.broker.presence import new_process_name
from orcastream.broker.queued import find_queued
from orcastream.cli.console.output import show_one
from orcastream.cli.console.run import FLAGS, NotDone, run_with_redis
from orcastream.cli.console.settings import RequestSettings
from orcastream.cli.parse import load_settings


def main(arguments: Sequence[str]) -> int:
    """Cancel the request; exit code 1 if it has ended or is unknown."""
    return run_with_redis(load_settings(RequestSettings, arguments, "requests cancel", FLAGS), _cancel)


async def _cancel(link: Connection, settings: RequestSettings) -> None:
    keys = settings.keys()
    queued = await find_queued(link, keys, settings.id)
    if queued is None:
        raise NotDone(f"id: got {settings.id!r}, allowed: a request that waits or runs")
    request = await read_request(link, keys, queued.ref, await link.server_time_ms())
    if request is None:
        raise NotDone(f"id: {settings.id!r} cannot be read, or has just ended; a worker that claims it sets it aside")
    ender = Ender(keys, f"console-{new_process_name()}", retention_ms=settings.retention_ms)
    await cancel_entry(link, keys, ender, request, queued.ref, retention_ms=settings.retention_ms)
    was = "waiting" if queued.worker is None else "running"
    show_one({"id": settings.id, "cancelled": True, "was": was}, as_json=settings.as_json)
