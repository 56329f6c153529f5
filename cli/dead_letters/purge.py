"""`orcastream dead-letters purge`: delete letters by reason, by age, or all of them."""

from collections.abc import Sequence

from orcastream.broker.connection import Connection
from orcastream.broker.letters import delete_letters, newest_letters
from orcastream.broker.rows import PIECE
from orcastream.cli.console.output import show_one
from orcastream.cli.console.run import FLAGS, run_with_redis
from orcastream.cli.console.settings import PurgeSettings
from orcastream.cli.errors import UserError
from orcastream.cli.parse import load_settings


def main(arguments: Sequence[str]) -> int:
    """Delete the letters and print how many there were."""
    settings = load_settings(PurgeSettings, arguments, "dead-letters purge", FLAGS)
    if settings.all == (settings.reason is not None or settings.older_than_s is not None):
        raise UserError("which letters: allowed: --reason, --older-than-s, both, or --all")
    return run_with_redis(settings, _purge)


async def _purge(link: Connection, settings: PurgeSettings) -> None:
    keys, now_ms, deleted = settings.keys(), await link.server_time_ms(), 0
    oldest_kept_ms = now_ms - (settings.older_than_s or 0) * 1000
    chosen: list[str] = []
    async for letter in newest_letters(link, keys):
        if settings.reason not in (None, letter.reason):
            continue
        if settings.older_than_s is not None and letter.buried_ms > oldest_kept_ms:
            continue
        chosen.append(letter.letter_id)
        if len(chosen) == PIECE:
            deleted += await delete_letters(link, keys, chosen)
            chosen.clear()
    deleted += await delete_letters(link, keys, chosen)
    show_one({"deleted": deleted}, as_json=settings.as_json)
