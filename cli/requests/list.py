"""`orcastream requests list`: list waiting and running requests by priority class, oldest first."""

from collections.abc import Sequence
from typing import Any

from orcastream.broker.connection import Connection
from orcastream.broker.queued import Queued, queued_requests
from orcastream.cli.console.output import Lines
from orcastream.cli.console.run import FLAGS, run_with_redis
from orcastream.cli.console.settings import RequestsListSettings
from orcastream.cli.parse import load_settings
from orcastream.schemas.keys import CLASSES

_COLUMNS = {
    "class": 8,
    "age_s": 7,
    "state": 7,
    "worker": 28,
    "epoch": 13,
    "lease_age_s": 9,
    "deliveries": 10,
    "deadline_in_s": 11,
    "id": 1,
}


def main(arguments: Sequence[str]) -> int:
    """Print the list."""
    return run_with_redis(load_settings(RequestsListSettings, arguments, "requests list", FLAGS), _list)


async def _list(link: Connection, settings: RequestsListSettings) -> None:
    lines = Lines(_COLUMNS, as_json=settings.as_json)
    classes = CLASSES if settings.priority_class is None else (settings.priority_class,)
    now_ms, count = await link.server_time_ms(), 0
    async for one in queued_requests(link, settings.keys(), classes):
        facts = facts_of(one, now_ms)
        if settings.state not in (None, facts["state"]) or settings.worker not in (None, one.worker):
            continue
        lines.show(facts)
        count += 1
        if count == settings.limit:
            break


def facts_of(one: Queued, now_ms: int) -> dict[str, Any]:
    """Return the facts shown about an entry, by name; times in seconds."""
    return {
        "id": one.request_id,
        "class": one.ref.priority_class,
        "entry": str(one.ref),
        "state": "waiting" if one.worker is None else "running",
        "age_s": (now_ms - one.arrived_ms) / 1000,
        "deadline_in_s": None if one.deadline_ms is None else (one.deadline_ms - now_ms) / 1000,
        "worker": one.worker,
        "lease_age_s": None if one.worker is None else one.idle_ms / 1000,
        "deliveries": one.deliveries,
        "epoch": one.epoch,
        "payload_bytes": one.payload_bytes,
    }
