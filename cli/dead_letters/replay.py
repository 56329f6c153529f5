"""`orcastream dead-letters replay ID`: run a dead letter's request again, as a new request with a new id."""

from collections.abc import Sequence

from orcastream.broker.connection import Connection
from orcastream.broker.replay import replay
from orcastream.cli.console.output import show_one
from orcastream.cli.console.run import FLAGS, NotDone, run_with_redis
from orcastream.cli.console.settings import ReplaySettings
from orcastream.cli.dead_letters.show import the_letter
from orcastream.cli.parse import load_settings
from orcastream.schemas.errors import InvalidRequest, without_values


def main(arguments: Sequence[str]) -> int:
    """Replay the letter; exit code 1 if no letter has that id, or the contract does not allow its request."""
    return run_with_redis(load_settings(ReplaySettings, arguments, "dead-letters replay", FLAGS), _replay)


async def _replay(link: Connection, settings: ReplaySettings) -> None:
    keys = settings.keys()
    letter, fields = await the_letter(link, keys, settings.id)
    timeout_ms = int(settings.timeout_s * 1000)
    try:
        done = await replay(link, keys, letter, fields, timeout_ms=timeout_ms, retention_ms=settings.retention_ms)
    except InvalidRequest as error:
        raise NotDone(f"{settings.id} cannot be run: {without_values(str(error))}") from None
    facts = {"letter": settings.id, "was": letter.request_id, "id": done.request_id, "entry": str(done.entry)}
    show_one({**facts, "again": done.again}, as_json=settings.as_json)
