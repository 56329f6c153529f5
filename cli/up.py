"""`orcastream up`: the whole service in one terminal, until Ctrl-C."""

import asyncio
import importlib.util
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from urllib.parse import urlsplit

from orcastream.cli.command import warn
from orcastream.cli.errors import UserError
from orcastream.cli.init_process import continue_below_init
from orcastream.cli.parse import load_settings
from orcastream.cli.served_model import with_model
from orcastream.cli.stack import Stack
from orcastream.cli.stop_signals import KILLED, StopSignals, stopped_or_killed
from orcastream.cli.up_settings import UpSettings
from orcastream.telemetry.logs import json_time
from orcastream.telemetry.standard_streams import print_or_drop
from orcastream.telemetry.version import own_version

_COLOURS = (36, 33, 35, 32, 34, 31)


def main(arguments: Sequence[str]) -> int:
    """Run until Ctrl-C: return 0 after an orderly stop, 130 after a second Ctrl-C, 2 if the service cannot start."""
    continue_below_init()
    settings = with_model(load_settings(UpSettings, arguments, "up"))
    _check_extras()
    _warn_of_unused(settings)
    return asyncio.run(_run(settings))


def _check_extras() -> None:
    for package, extra in (("fastapi", "gateway"), ("torch", "worker")):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"the package {package} is not installed: pip install 'orcastream[{extra}]'")


def _warn_of_unused(settings: UpSettings) -> None:
    if settings.redis_url:
        for name in sorted({"redis_port", "data_dir"} & settings.model_fields_set):
            warn("orcastream up", f"{name}: ignored, because redis_url is set and no embedded server runs")


async def _run(settings: UpSettings) -> int:
    signals = StopSignals()
    lines: Lines = JsonLines() if settings.log_form == "json" else TextLines(settings.workers)
    stack = Stack(settings, lines.show)
    serving = asyncio.create_task(_serve(stack, settings, lines))
    stopping = asyncio.create_task(signals.stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        lines.show("up", "stopping; Ctrl-C again kills everything at once")
        serving.cancel()
    code = await _stop(stack, signals, lines)
    await asyncio.wait((serving,))
    stopping.cancel()
    if not serving.cancelled() and (error := serving.exception()):
        raise error
    return code


async def _serve(stack: Stack, settings: UpSettings, lines: "Lines") -> None:
    lines.show("up", f"orcastream {own_version()}, model {settings.model} as {settings.served_model_name}")
    await stack.start()
    lines.show("redis", _redis_cli(stack.redis_url))
    lines.show("gateway", stack.url)
    await stack.ready()
    lines.show("up", f"ready: {stack.url}/v1")
    if settings.console:
        lines.show("up", f"console: {stack.url}/console")
    await stack.gave_up()


def _redis_cli(url: str) -> str:
    """Return the redis-cli command that connects to the server, or how to find it; without its password."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"redis-cli -s {parts.path}"
    if "+" in parts.scheme:
        return f"master named {parts.path.strip('/')}, found by sentinels"
    tls = " --tls" if parts.scheme == "rediss" else ""
    return f"redis-cli -h {parts.hostname} -p {parts.port or 6379}{tls}"


async def _stop(stack: Stack, signals: StopSignals, lines: "Lines") -> int:
    in_order = await stopped_or_killed(stack.stop(), stack.kill, signals)
    lines.show("up", "stopped" if in_order else "killed")
    return 0 if in_order else KILLED


class Lines(ABC):
    """The printed output of the processes."""

    @abstractmethod
    def shown(self, name: str, line: str) -> str:
        """Return a line of the process `name` in its printed form."""

    def show(self, name: str, line: str) -> None:
        """Print one line; the service continues if that fails."""
        print_or_drop(self.shown(name, line), sys.stdout)


class TextLines(Lines):
    """Text output: each line after the name of its process."""

    def __init__(self, workers: int) -> None:
        self._width = len(f"worker-{workers}")
        self._coloured = sys.stdout.isatty()
        self._colours: dict[str, int] = {}

    def shown(self, name: str, line: str) -> str:
        """Return the name, in its own color on a terminal, and the line."""
        colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
        label = f"{name:<{self._width}} |"
        return f"\x1b[{colour}m{label}\x1b[0m {line}" if self._coloured else f"{label} {line}"


class JsonLines(Lines):
    """JSON output: each line is an object that names its process; JSON lines keep their fields, text is the message."""

    def shown(self, name: str, line: str) -> str:
        """Return one JSON object."""
        try:
            fields = json.loads(line)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            fields = {"time": json_time(time.time()), "level": "info", "logger": "orcastream.up", "message": line}
        return json.dumps({**fields, "process": name})
