"""`orcastream requests show ID`: show a request's state, its worker and its progress."""

from collections.abc import Sequence
from typing import Any

from orcastream.broker.connection import Connection
from orcastream.broker.fold import Fold, fold_log
from orcastream.broker.log_pages import read_log
from orcastream.broker.origin import read_request
from orcastream.broker.queued import find_queued
from orcastream.cli.console.output import show_one
from orcastream.cli.console.run import FLAGS, NotDone, run_with_redis
from orcastream.cli.console.settings import RequestShowSettings
from orcastream.cli.parse import load_settings
from orcastream.cli.requests.list import facts_of
from orcastream.schemas.errors import without_values
from orcastream.schemas.events import Terminal
from orcastream.schemas.request import GenerationRequest


def main(arguments: Sequence[str]) -> int:
    """Print the facts about the request."""
    return run_with_redis(load_settings(RequestShowSettings, arguments, "requests show", FLAGS), _show)


async def _show(link: Connection, settings: RequestShowSettings) -> None:
    keys, now_ms = settings.keys(), await link.server_time_ms()
    queued = await find_queued(link, keys, settings.id)
    request = None if queued is None else await read_request(link, keys, queued.ref, now_ms)
    entries = await read_log(link, keys.reply(settings.id))
    if queued is None and not entries:
        raise NotDone(f"id: got {settings.id!r}, allowed: a request that waits, runs, or ended within retention_s")
    facts: dict[str, Any] = {"id": settings.id, "state": "ended"} if queued is None else facts_of(queued, now_ms)
    facts["cancelled"] = bool(await link.call("EXISTS", keys.cancel(settings.id)))
    if request is not None:
        facts |= _of_request(request, content=settings.content)
    if entries:
        facts |= _of_log(fold_log(entries), len(entries), content=settings.content)
        left_ms = await link.call("PTTL", keys.reply(settings.id))
        facts["log_expires_in_s"] = left_ms / 1000 if left_ms >= 0 else None
    show_one(facts, as_json=settings.as_json)


def _of_request(request: GenerationRequest, *, content: bool) -> dict[str, Any]:
    payload = request.payload
    facts: dict[str, Any] = {
        "tenant": payload.tenant,
        "prompt_tokens": len(payload.prompt),
        "max_tokens": payload.max_tokens,
        "choices": payload.n,
        "on_disconnect": payload.on_disconnect,
    }
    return {**facts, "prompt": list(payload.prompt)} if content else facts


def _of_log(fold: Fold, events: int, *, content: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"events": events, "output_tokens": [len(tokens) for tokens in fold.tokens]}
    if fold.started is not None:
        facts["tenant"] = fold.started.tenant
        facts["prompt_tokens"] = fold.started.prompt_tokens
        facts["last_worker"] = fold.started.worker
    if fold.last_id is not None:
        facts["epoch"] = fold.last_id.epoch
    if fold.terminal is not None:
        facts |= _of_end(fold.terminal, content=content)
    return {**facts, "output": fold.tokens} if content else facts


def _of_end(terminal: Terminal, *, content: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"ended": "finished" if terminal.error is None else str(terminal.error)}
    facts["finish_reasons"] = [
        None if end.finish_reason is None else str(end.finish_reason) for end in terminal.endings
    ]
    if terminal.message is not None:
        facts["message"] = terminal.message if content else without_values(terminal.message)
    return facts
