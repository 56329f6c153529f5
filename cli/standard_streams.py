"""The streams of this process, as whoever started it left them: closed, on a full disk, without a reader."""

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Final, TextIO

UNWRITABLE: Final = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the user can mend where something cannot be written."""


def mend_streams() -> None:
    """Open the streams that were closed when this process began, and write what their encoding lacks as escapes."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_or_drop(line: str, stream: TextIO) -> None:
    """Print a line; where that cannot be it is lost, and the next one is tried again."""
    try:
        print(line, file=stream, flush=True)
    except BrokenPipeError:
        forget(stream)
    except OSError:
        pass


def forget(stream: TextIO) -> None:
    """Send what is left of a stream, and what comes, nowhere: Python would try, and complain, at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
