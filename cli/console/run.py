"""Code shared by the commands that inspect a queue: sub-commands, the connection, and errors."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from redis.exceptions import ResponseError

from orcastream.broker.connect import connect
from orcastream.broker.connection import Connection
from orcastream.broker.errors import BrokerError
from orcastream.broker.settings import BrokerSettings
from orcastream.cli.command import Command, overview, run_command
from orcastream.cli.credentials import without_credentials
from orcastream.cli.errors import UserError
from orcastream.cli.served_model import with_model, with_redis

S = TypeVar("S", bound=BrokerSettings)
Work = Callable[[Connection, S], Awaitable[None]]
FLAGS = {"as-json": "json", "priority-class": "class"}
"""Shorter flag names for some settings."""


class NotDone(UserError):
    """The object does not exist, or the operation is not possible on it: exit code 1."""

    code = 1


class NoRedis(UserError):
    """Redis cannot be reached, or refuses a required command: exit code 3."""

    code = 3


def run_subcommand(program: str, commands: Mapping[str, Command], arguments: Sequence[str]) -> int:
    """Run one of `commands`; return the exit code."""
    name, *rest = list(arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        codes = "exit codes: 0 done, 1 not found or not possible, 2 wrong usage or settings, 3 no Redis"
        print(f"usage: {program} COMMAND [--help] [FLAGS]\n\ncommands:\n{overview(commands)}\n\n{codes}")
        return 0
    return run_command(program, commands, name, rest)


def run_with_redis(settings: S, work: Work[S]) -> int:
    """Run `work` with a connection to the configured Redis and the served model's name filled in; return 0."""
    complete = with_model(with_redis(settings))
    try:
        asyncio.run(_connected(complete, work))
    except (BrokerError, ResponseError) as error:
        raise NoRedis(f"redis_url {without_credentials(str(complete.redis_url))}: {error}") from None
    return 0


async def _connected(settings: S, work: Work[S]) -> None:
    link = await connect(str(settings.connection_url), name="orcastream-console")
    try:
        await work(link, settings)
    finally:
        await link.close()
