"""A real gateway in front of a scripted worker, and `orcastream chat` as a process that uses it."""

import asyncio
import fcntl
import os
import re
import signal
import sys
import termios
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from orcastream.schemas.request import GenerationRequest
from tests.cli.processes import ROOT
from tests.gateway.conftest import Stage, model_folder, redis_binary, stage, stage_of, tokenizer
from tests.patience import PATIENCE_S

__all__ = ["model_folder", "redis_binary", "stage", "stage_of", "tokenizer"]

CHAT = (sys.executable, "-P", "-m", "orcastream.cli.main", "chat")


def environment(directory: Path) -> dict[str, str]:
    """An environment with its own state directory, and a terminal that is not queried for its cursor position."""
    own = {"XDG_STATE_HOME": str(directory), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    return {**os.environ, **own, "PYTHONPATH": str(ROOT)}


def asked(stage: Stage, request: GenerationRequest) -> str:
    """Return the prompt as the worker got it."""
    return stage.tokenizer.decode(request.payload.prompt)


async def piped(directory: Path, url: str, text: str, *flags: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of a chat that reads `text`."""
    process = await asyncio.create_subprocess_exec(
        *CHAT,
        "--url",
        url,
        *flags,
        cwd=directory,
        env=environment(directory),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(text.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


class Tty:
    """A chat on its own terminal, with typed input."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process = process
        self._master = master
        self.text = ""
        """Everything shown so far."""
        self._seen = 0
        self._changed = asyncio.Event()
        os.set_blocking(master, False)
        asyncio.get_running_loop().add_reader(master, self._read)

    @classmethod
    async def open(cls, directory: Path, url: str, *flags: str) -> "Tty":
        """Start the chat and wait for its prompt."""
        master, slave = os.openpty()

        def own_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        process = await asyncio.create_subprocess_exec(
            *CHAT,
            "--url",
            url,
            *flags,
            cwd=directory,
            env=environment(directory),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=own_terminal,
        )
        os.close(slave)
        tty = cls(process, master)
        await tty.shows("talking with tiny")
        await tty.prompts()
        return tty

    async def type(self, text: str) -> None:
        """Send keys as a terminal does; Enter is a carriage return."""
        left = text.encode()
        while left:
            try:
                left = left[os.write(self._master, left) :]
            except BlockingIOError:
                await asyncio.sleep(0.01)

    async def prompts(self) -> None:
        """Wait for the prompt: only then does the prompt receive keys."""
        await self.shows(re.escape("\x1b[?2004h"))  # the prompt begins by enabling bracketed paste

    async def shows(self, pattern: str, timeout_s: float = PATIENCE_S) -> str:
        """Wait for the first match in the output not searched yet."""
        async with asyncio.timeout(timeout_s):
            while (match := re.search(pattern, self.text[self._seen :])) is None:
                self._changed.clear()
                await self._changed.wait()
        self._seen += match.end()
        return match[0]

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, as it does for a shell."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    async def close(self) -> int:
        """Make sure that the chat ends; return its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        code = await self.process.wait()
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        return code

    def _read(self) -> None:
        try:
            self.text += os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # the last process on the terminal is gone
            asyncio.get_running_loop().remove_reader(self._master)
        self._changed.set()


OpenTty = Callable[..., "asyncio.Future[Tty]"]


@pytest.fixture
async def open_tty(tmp_path: Path) -> AsyncIterator[Callable[..., "object"]]:
    """Starts chats on terminals, `await open_tty(url, *flags)`, and ends them with the test."""
    opened: list[Tty] = []

    async def open_one(url: str, *flags: str) -> Tty:
        opened.append(await Tty.open(tmp_path, url, *flags))
        return opened[-1]

    yield open_one
    for tty in opened:
        await tty.close()
