"""Keeps programs running: starts them, restarts them when they die, and stops them on request."""

import asyncio
import time
from collections.abc import Callable

from orcastream.broker.back_off import BackOff
from orcastream.cli.errors import UserError
from orcastream.cli.process import Process, Program, describe_exit, watch_without_threads

UNUSABLE_SETTINGS = 2
"""The exit code of a program that can never run with its settings: a restart is useless."""

_STEADY_S = 60.0
"""A program that has lived this long does not die at its start, and its settings are usable."""
_KILLED_S = 5.0
"""How long a killed process may take to disappear."""


class GaveUp(UserError):
    """A program cannot be started, or ended in a way that a restart cannot fix."""


class Supervisor:
    """A runner of programs by name. `report(name, line)` gets their starts and ends, `output` what they print."""

    def __init__(
        self,
        report: Callable[[str, str], None],
        make_back_off: Callable[[], BackOff] = lambda: BackOff(0.5, 30.0),
        output: Callable[[str, str], None] | None = None,
        steady_s: float = _STEADY_S,
    ) -> None:
        """Without `output`, `report` gets both. Pauses grow while a program keeps dying within `steady_s`."""
        watch_without_threads()
        self._report = report
        self._output = output or report
        self._make_back_off = make_back_off
        self._steady_s = steady_s
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._running: dict[str, Process] = {}
        self._stopping: dict[str, asyncio.Event] = {}
        self._gave_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pid(self, name: str) -> int | None:
        """Return the pid of a running program, None between two runs."""
        process = self._running.get(name)
        return process.pid if process else None

    async def start(self, program: Program) -> None:
        """Start `program` and keep it running. Raises GaveUp if the first start fails."""
        self._stopping[program.name] = asyncio.Event()
        try:
            first = await self._spawn(program)
        except OSError as error:
            raise GaveUp(f"{program.name} cannot start: {error.strerror}") from None
        self._keepers[program.name] = asyncio.create_task(self._keep(program, first))

    async def gave_up(self) -> None:
        """Wait until a program has ended for good; then raise GaveUp."""
        await asyncio.shield(self._gave_up)

    async def stop(self, *names: str, grace_s: float) -> None:
        """Send SIGTERM to the named programs together, and SIGKILL to those still alive after `grace_s` seconds."""
        known = [name for name in names if name in self._keepers]
        for name in known:
            self._stopping[name].set()
            if process := self._running.get(name):
                process.terminate()
        keepers = [self._keepers[name] for name in known]
        if not keepers:
            return
        _, late = await asyncio.wait(keepers, timeout=grace_s)
        if late:
            self.kill(*known)
            await asyncio.wait(late, timeout=_KILLED_S)

    def kill(self, *names: str) -> None:
        """Send SIGKILL to the named programs, or to all; none of them is restarted."""
        for name in names or tuple(self._keepers):
            if name in self._stopping:
                self._stopping[name].set()
            if process := self._running.get(name):
                process.kill()

    async def _spawn(self, program: Program) -> Process:
        process = await Process.spawn(program, lambda line: self._output(program.name, line))
        self._running[program.name] = process
        self._report(program.name, f"pid {process.pid}")
        return process

    async def _keep(self, program: Program, process: Process) -> None:
        stopping = self._stopping[program.name]
        back_off = self._make_back_off()
        proven = False  # its settings are usable; what it lacks now may return
        while True:
            started = time.monotonic()
            code = await process.wait()
            del self._running[program.name]
            if stopping.is_set():
                self._report(program.name, f"stopped ({describe_exit(code)})")
                return
            if time.monotonic() - started >= self._steady_s:
                proven = True
                back_off.succeeded()
            if code == UNUSABLE_SETTINGS and not proven:
                self._give_up(program, describe_exit(code))
                return
            again = await self._start_again(program, f"died ({describe_exit(code)})", back_off)
            if again is None:
                return
            process = again
            if stopping.is_set():
                process.terminate()

    async def _start_again(self, program: Program, reason: str, back_off: BackOff) -> Process | None:
        """Start a program that has run before, however long memory or descriptors are short; None if it is stopped."""
        while True:
            pause_s = back_off.failed()
            self._report(program.name, f"{reason}, starts again in {pause_s:.2f} s")
            if await _is_set_within(self._stopping[program.name], pause_s):
                return None
            try:
                return await self._spawn(program)
            except OSError as error:
                reason = f"cannot start ({error.strerror})"

    def _give_up(self, program: Program, reason: str) -> None:
        if not self._gave_up.done():
            self._gave_up.set_exception(GaveUp(f"{program.name} cannot run: {reason}; see its lines above"))
            self._gave_up.exception()  # retrieved, so that no warning appears if nobody awaits it


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
