"""The lock on a data directory: one server at a time may write to it."""

import asyncio
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orcastream.cli.errors import UserError

_POLL_S = 0.05


class DataDirInUse(UserError):
    """Another process holds the data directory; the message is a sentence for the user."""


class DataDirUnusable(UserError):
    """The data directory cannot be written to; the message is a sentence for the user."""


class DataLock:
    """An flock on `lock` in the data directory.

    The kernel releases it when the last process that holds the descriptor is gone. Redis inherits it, so a directory
    stays locked until its server has written the last byte, even if the process that started the server was killed.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._fd: int | None = None

    @property
    def fd(self) -> int:
        """The descriptor that a child may inherit; valid only while the lock is held."""
        assert self._fd is not None
        return self._fd

    async def acquire(self, patience_s: float = 2.0) -> None:
        """Take the lock, waiting up to `patience_s` seconds for a server that is stopping.

        Raises DataDirInUse if it stays locked, DataDirUnusable if the directory cannot be created or written to.
        """
        with writing_to(self._data_dir):
            self._data_dir.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            await self._lock(fd, patience_s)
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._fd = fd

    async def _lock(self, fd: int, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while not _try_lock(fd):
            if time.monotonic() > deadline:
                owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(fd)
                raise DataDirInUse(
                    f"data_dir: {self._data_dir} is in use by another orcastream (pid {owner}); "
                    "stop it, or choose another --data-dir"
                )
            await asyncio.sleep(_POLL_S)

    def release(self) -> None:
        """Release the lock; no effect if it is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


@contextmanager
def writing_to(data_dir: Path) -> Iterator[None]:
    """Turn an OSError inside the block into DataDirUnusable."""
    try:
        yield
    except OSError as error:
        raise DataDirUnusable(
            f"data_dir (--data-dir, ORCASTREAM_DATA_DIR): got {str(data_dir)!r}, "
            f"allowed: a directory that can be created and written to ({error.strerror})"
        ) from None


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
