"""`orcastream dead-letters list`: list the dead letters, newest first."""

from collections.abc import Sequence
from typing import Any

from orcastream.broker.connection import Connection
from orcastream.broker.letters import DeadLetter, newest_letters
from orcastream.cli.console.output import Lines
from orcastream.cli.console.run import FLAGS, run_with_redis
from orcastream.cli.console.settings import LettersListSettings
from orcastream.cli.parse import load_settings
from orcastream.schemas.errors import without_values

_COLUMNS = {"letter": 18, "age_s": 7, "class": 8, "reason": 19, "attempts": 8, "id": 41, "message": 1}


def main(arguments: Sequence[str]) -> int:
    """Print the list."""
    return run_with_redis(load_settings(LettersListSettings, arguments, "dead-letters list", FLAGS), _list)


async def _list(link: Connection, settings: LettersListSettings) -> None:
    lines = Lines(_COLUMNS, as_json=settings.as_json)
    now_ms, count = await link.server_time_ms(), 0
    async for letter in newest_letters(link, settings.keys()):
        if settings.reason not in (None, letter.reason):
            continue
        lines.show(facts_of(letter, now_ms))
        count += 1
        if count == settings.limit:
            break


def facts_of(letter: DeadLetter, now_ms: int, *, content: bool = False) -> dict[str, Any]:
    """Return the facts shown about a letter, by name; times in seconds. With `content`, its message is complete."""
    return {
        "letter": letter.letter_id,
        "id": letter.request_id,
        "class": letter.priority_class,
        "entry": letter.entry,
        "reason": letter.reason,
        "message": letter.message if content else without_values(letter.message),
        "attempts": letter.attempts,
        "age_s": (now_ms - letter.buried_ms) / 1000,
        "deadline_ms": letter.deadline_ms,
        "payload_bytes": letter.payload_bytes,
    }
