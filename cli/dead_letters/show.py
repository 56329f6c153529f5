"""`orcastream dead-letters show ID`: show one dead letter and what is known about its request."""

from collections.abc import Mapping, Sequence
from typing import Any

from orcastream.broker.connection import Connection
from orcastream.broker.letters import DeadLetter, find_letter
from orcastream.cli.console.output import show_one
from orcastream.cli.console.run import FLAGS, NotDone, run_with_redis
from orcastream.cli.console.settings import LetterShowSettings
from orcastream.cli.dead_letters.list import facts_of
from orcastream.cli.parse import load_settings
from orcastream.schemas.codec import decode
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import Keys
from orcastream.schemas.limits import MAX_PAYLOAD_BYTES, MAX_PAYLOAD_PARTS
from orcastream.schemas.request import parse_payload


def main(arguments: Sequence[str]) -> int:
    """Print the letter; exit code 1 if no letter has that id."""
    return run_with_redis(load_settings(LetterShowSettings, arguments, "dead-letters show", FLAGS), _show)


async def the_letter(link: Connection, keys: Keys, letter_id: str) -> tuple[DeadLetter, dict[bytes, bytes]]:
    """Return the letter with that id and the fields of its request. Raises NotDone if there is none."""
    found = await find_letter(link, keys, letter_id)
    if found is None:
        raise NotDone(f"id: got {letter_id!r}, allowed: a letter that `orcastream dead-letters list` shows")
    return found


async def _show(link: Connection, settings: LetterShowSettings) -> None:
    letter, fields = await the_letter(link, settings.keys(), settings.id)
    facts = facts_of(letter, await link.server_time_ms(), content=settings.content)
    facts |= _of_payload(fields, content=settings.content)
    show_one(facts, as_json=settings.as_json)


def _of_payload(fields: Mapping[bytes, bytes], *, content: bool) -> dict[str, Any]:
    """Return tenant and lengths from a readable payload; with `content`, everything in it."""
    raw = fields.get(b"payload", b"")
    try:
        if len(raw) > MAX_PAYLOAD_BYTES:
            raise InvalidRequest("payload", f"{len(raw)} bytes", f"at most {MAX_PAYLOAD_BYTES} bytes")
        payload = parse_payload(decode(raw, unique_keys=True, max_parts=MAX_PAYLOAD_PARTS))
    except InvalidRequest:
        return {"payload": raw.decode(errors="backslashreplace")} if content else {}
    facts: dict[str, Any] = {
        "tenant": payload.tenant,
        "prompt_tokens": len(payload.prompt),
        "max_tokens": payload.max_tokens,
    }
    return {**facts, "payload": payload.model_dump(mode="json", exclude_defaults=True)} if content else facts
