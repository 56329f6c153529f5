"""One child process with its own process group; its output is read by line, and it does not outlive us."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_HELPER = Path(__file__).with_name("child.py")
_CHUNK_BYTES = 65536
_LAST_OUTPUT_S = 1.0
"""How long after the child's end its output is still read: a grandchild may hold the pipe open."""


@dataclass(frozen=True)
class Program:
    """A command and its name. The kernel sends it `death_signal` if we die without stopping it."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    death_signal: signal.Signals = signal.SIGKILL
    keep_fds: tuple[int, ...] = ()


class Process:
    """A running program. Spawn it in the main thread: the kernel ties its life to the spawning thread."""

    def __init__(self, program: Program, process: asyncio.subprocess.Process, on_line: Callable[[str], None]) -> None:
        self.program = program
        self._process = process
        self._output = asyncio.create_task(self._read_lines(on_line))

    @classmethod
    async def spawn(cls, program: Program, on_line: Callable[[str], None]) -> "Process":
        """Start `program`; each line of its output goes to `on_line`. Raises OSError if it cannot be started.

        Its own process group shields it from a terminal's Ctrl-C: stopping children in order is the parent's job.
        """
        parent = (str(os.getpid()), str(int(program.death_signal)))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_HELPER), *parent, *program.command),
            env={**os.environ, **program.environment},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            process_group=0,
            pass_fds=program.keep_fds,
        )
        return cls(program, process, on_line)

    @property
    def pid(self) -> int:
        """The pid of the program itself: the helper that ties it to us becomes it by exec."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the end and the last line of output; return the exit code, or minus the signal's number."""
        code = await self._process.wait()
        await asyncio.wait([self._output], timeout=_LAST_OUTPUT_S)
        self._output.cancel()
        return code

    def terminate(self) -> None:
        """Ask the program to stop (SIGTERM)."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """Kill the program and everything that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _read_lines(self, on_line: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        rest = b""
        while chunk := await self._process.stdout.read(_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                on_line(line.decode(errors="replace").rstrip("\r"))
        if rest:
            on_line(rest.decode(errors="replace"))


def watch_without_threads() -> None:
    """Let the kernel tell the running loop when a child ends, as Python does from 3.12 on. Before, a thread waits for
    each child, and a child for which no thread can be started is lost.
    """
    if sys.version_info >= (3, 12):
        return
    current = asyncio.get_child_watcher()
    if isinstance(current, asyncio.PidfdChildWatcher) and current.is_active():
        return
    with suppress(OSError):  # an old kernel
        os.close(os.pidfd_open(os.getpid()))
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.set_child_watcher(watcher)


def describe_exit(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
