"""The process of one system: started once, queried line by line, stopped while another one is measured."""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

_GRACE_S = 10.0
_TAIL_BYTES = 2000


class RunnerError(Exception):
    """A system failed; the message quotes it or its process."""


class RunnerProcess:
    """A child in its own process group, with the protocol of `bench/peers/runners/protocol.py` on its pipes."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            command,
            env=dict(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            process_group=0,
        )
        self._read = b""

    def __enter__(self) -> "RunnerProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The pid of the child, which is also its group's id."""
        return self._process.pid

    def ask(self, timeout_s: float, **question: Any) -> dict[str, Any]:
        """Return the answer to a question. Raises RunnerError if it is an error or does not arrive in time."""
        line = json.dumps(question).encode() + b"\n"
        try:
            self._pipe(self._process.stdin).write(line)
            self._pipe(self._process.stdin).flush()
        except BrokenPipeError:
            raise RunnerError(self._end()) from None
        answer: dict[str, Any] = json.loads(self._line(timeout_s))
        if "error" in answer:
            raise RunnerError(str(answer["error"]))
        return answer

    def pause(self) -> None:
        """Stop the process, so that it does not even spin, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process and everything it started, gently at first."""
        self.resume()
        with suppress(BrokenPipeError):
            self._pipe(self._process.stdin).close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._pipe(self._process.stdout).close()
        self._log.close()

    def _line(self, timeout_s: float) -> bytes:
        until = time.monotonic() + timeout_s
        answers = self._pipe(self._process.stdout).fileno()
        while b"\n" not in self._read:
            if not select.select([answers], [], [], max(0.0, until - time.monotonic()))[0]:
                raise RunnerError(f"no answer within {timeout_s:g} s")
            part = os.read(answers, 1 << 20)
            if not part:
                raise RunnerError(self._end())
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _end(self) -> str:
        """Return how the process ended, and its last line."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _TAIL_BYTES))
        said = self._log.read().decode(errors="replace").strip().splitlines() or ["nothing"]
        return f"its process ended with {self._process.returncode}, and last printed: {said[-1]}"

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    @staticmethod
    def _pipe(pipe: Any) -> Any:
        return pipe
