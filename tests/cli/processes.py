"""Watching processes end, by kernel events and output lines, without polling."""

import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


class ProcessWatch:
    """Knows when a process is gone, whether child or orphan. Open it while the process is alive."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def gone_within(self, seconds: float) -> bool:
        """Return True as soon as the process has ended, False if it is still alive."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        os.close(self._fd)


class Terminal:
    """An Orcastream command running in its own process, with its lines as they arrive."""

    def __init__(
        self,
        *arguments: str,
        program: tuple[str, ...] = (sys.executable, "-P"),
        env: dict[str, str] | None = None,
        cwd: Path = ROOT,
    ) -> None:
        self.process = subprocess.Popen(
            [*program, *arguments],
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                **({"PYTHONPATH": str(ROOT)} if program else {}),
                **(env or {}),
            },
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        self.lines: list[str] = []
        self._seen = 0
        self._incoming: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._incoming.put(line.rstrip("\n"))
        self._incoming.put(None)

    def wait_for(self, pattern: str, timeout: float = PATIENCE_S) -> re.Match[str]:
        """Return the first match in the lines not searched yet; each line is searched once."""
        return self._scan(lambda line: re.search(pattern, line), pattern, timeout)

    def _scan(self, found: Callable[[str], re.Match[str] | None], what: str, timeout: float) -> re.Match[str]:
        deadline = time.monotonic() + timeout
        while True:
            while self._seen < len(self.lines):
                self._seen += 1
                if match := found(self.lines[self._seen - 1]):
                    return match
            try:
                line = self._incoming.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line like {what!r} within {timeout} s:\n" + self.text) from None
            if line is None:
                raise AssertionError(f"ended without a line like {what!r}:\n" + self.text)
            self.lines.append(line)

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code

    @property
    def text(self) -> str:
        """Everything printed so far."""
        while not self._incoming.empty():
            line = self._incoming.get()
            if line is not None:
                self.lines.append(line)
        return "\n".join(self.lines)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self, pid: int) -> None:
        """Send SIGKILL to one of its children."""
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Make sure that no process of it remains."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
