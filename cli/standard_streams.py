"""This process's output, which goes where whoever started it said: to a disk that is full, or a reader that is gone."""

import os
from contextlib import suppress
from typing import TextIO


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
