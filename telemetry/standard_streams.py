"""This process's standard streams, which may be closed, on a full disk, or without a reader."""

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Final, TextIO

UNWRITABLE: Final = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Write errors that the user can fix."""


def mend_streams() -> None:
    """Open streams that were closed at the start of this process, and escape characters that their encoding lacks."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - stays open with the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_or_drop(line: str, stream: TextIO) -> None:
    """Print a line; if that fails the line is lost, and the next one is tried again."""
    try:
        print(line, file=stream, flush=True)
    except BrokenPipeError:
        forget(stream)
    except OSError:
        own = os.dup(stream.fileno())
        forget(stream)
        stream.flush()
        os.dup2(own, stream.fileno())
        os.close(own)


def forget(stream: TextIO) -> None:
    """Discard buffered and future output of a stream: at exit Python would try to write it, and complain."""
    with suppress(OSError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
