"""`orcastream top`: show a model's queue and workers, live."""

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError
from rich.console import Console
from rich.live import Live

from orcastream.broker.connection import Connection
from orcastream.broker.errors import BrokerError
from orcastream.broker.overview import read_overview
from orcastream.broker.redis_link import RedisLink
from orcastream.cli.console.run import FLAGS, run_with_redis
from orcastream.cli.console.settings import TopSettings
from orcastream.cli.errors import UserError
from orcastream.cli.interruption import interrupt_on_stop
from orcastream.cli.parse import load_settings
from orcastream.cli.top.rates import RateMeter
from orcastream.cli.top.snapshot import snapshot
from orcastream.cli.top.view import view


def main(arguments: Sequence[str]) -> int:
    """Return exit code 0 after Ctrl-C, the way to leave the live view, or SIGTERM."""
    settings = load_settings(TopSettings, arguments, "top", FLAGS)
    if settings.as_json and not settings.once:
        raise UserError("as_json (--json): allowed: with --once")
    if not settings.once and not sys.stdout.isatty():
        raise UserError("standard output is not a terminal; allowed: --once")
    interrupt_on_stop()
    try:
        return run_with_redis(settings, _once if settings.once else _live)
    except KeyboardInterrupt:
        if settings.once:
            raise
        return 0


class _Looker:
    """A source of snapshots, each with the rates since the one before."""

    def __init__(self, settings: TopSettings) -> None:
        self._keys = settings.keys()
        self._meter = RateMeter()

    async def look(self, link: Connection) -> dict[str, Any]:
        """Return a snapshot. Raises the errors of `read_overview`."""
        overview = await read_overview(link, self._keys)
        return snapshot(overview, self._meter.look(overview.workers), self._keys.model)


async def _once(link: Connection, settings: TopSettings) -> None:
    looker = _Looker(settings)
    await looker.look(link)
    await asyncio.sleep(settings.interval_s)
    told = await looker.look(link)
    if settings.as_json:
        print(json.dumps(told))
    else:
        console = Console()
        console.print(view(told, console.width))


async def _live(link: Connection, settings: TopSettings) -> None:
    looker, redis = _Looker(settings), RedisLink(str(settings.connection_url), "orcastream-top")
    told, problem = await looker.look(link), ""
    try:
        with Live(screen=True, auto_refresh=False) as live:
            while True:
                live.update(view(told, live.console.width, problem), refresh=True)
                await asyncio.sleep(settings.interval_s)
                try:
                    told, problem = await looker.look(await redis.get()), ""
                except (BrokerError, ResponseError) as error:
                    problem = f"Redis does not answer: {error}"
    finally:
        await redis.close()
