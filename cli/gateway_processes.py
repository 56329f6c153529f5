"""Several gateway processes on one port: started, kept running, drained together.

Each process has its own listening socket (SO_REUSEPORT), so the kernel spreads new connections evenly over the live
processes, which matters for streams that last minutes. On one shared socket, the process that is awake takes them all.
"""

import asyncio
import logging
import signal
import sys

from orcastream.cli.environment import as_environment, import_path
from orcastream.cli.init_process import continue_below_init
from orcastream.cli.ports import held_port
from orcastream.cli.process import Program
from orcastream.cli.stop_signals import KILLED, StopSignals, stopped_or_killed
from orcastream.cli.supervisor import Supervisor
from orcastream.gateway.log import log_event
from orcastream.gateway.settings import GatewaySettings
from orcastream.telemetry.logs import set_up_logging
from orcastream.telemetry.standard_streams import print_or_drop

_STOP_MARGIN_S = 8.0
"""Time that a process gets beyond its grace to end its streams and exit, before it is killed."""


def serve_all(settings: GatewaySettings) -> int:
    """Serve until a signal: 0 after an orderly stop, 130 after a second signal. Raises PortUnavailable, GaveUp."""
    continue_below_init()
    set_up_logging(settings.log_level, settings.log_form, content=settings.log_content)
    return asyncio.run(_serve_all(settings))


async def _serve_all(settings: GatewaySettings) -> int:
    signals = StopSignals()
    with held_port(settings.host, settings.port, "port") as port:
        supervisor = Supervisor(_tell, output=_pass_on)
        names = [f"gateway-{number}" for number in range(1, settings.gateway_workers + 1)]
        for number, name in enumerate(names):
            await supervisor.start(_program(settings, name, number, port))
        serving = asyncio.create_task(supervisor.gave_up())
        stopping = asyncio.create_task(signals.stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        grace_s = settings.shutdown_grace_s + _STOP_MARGIN_S
        in_order = await stopped_or_killed(supervisor.stop(*names, grace_s=grace_s), supervisor.kill, signals)
        if serving.done():
            serving.result()
        serving.cancel()
    return 0 if in_order else KILLED


def _program(settings: GatewaySettings, name: str, number: int, port: int) -> Program:
    own = {"ORCASTREAM_GATEWAY_WORKERS": "1", "ORCASTREAM_PORT": str(port), "PYTHONUNBUFFERED": "1"}
    if settings.process_port is not None:
        own["ORCASTREAM_PROCESS_PORT"] = str(settings.process_port + number)
    command = (sys.executable, "-P", "-m", "orcastream.cli.gateway_process")
    environment = as_environment(settings, GatewaySettings) | import_path() | own
    return Program(name, command, environment, death_signal=signal.SIGTERM)


def _tell(name: str, line: str) -> None:
    """Print what happened to a process."""
    log_event(f"{name}: {line}", level=logging.WARNING if line.startswith("died") else logging.INFO)


def _pass_on(name: str, line: str) -> None:
    """Print a process's log line unchanged: it is already complete."""
    print_or_drop(line, sys.stderr)
