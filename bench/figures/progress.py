"""Progress bars on standard error, redrawn occasionally by the measuring loop, without a thread of their own."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_REFRESH_S = 0.5


class RunBars:
    """Two bars: runs, and requests of the current run; silent if standard error is not a terminal."""

    def __init__(self, runs: int, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(
            *columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal
        )
        self._runs = self._progress.add_task("runs", total=runs)
        self._run = self._progress.add_task("", total=None)
        self._drawn_s = 0.0

    def __enter__(self) -> "RunBars":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def begin(self, description: str, requests: int | None) -> None:
        """Start a run; `requests` None means an unknown number."""
        self._progress.reset(self._run, description=description, total=requests)
        self._progress.refresh()

    def update(self, ended: int) -> None:
        """Set the number of requests of the run that have ended."""
        if time.monotonic() - self._drawn_s < _REFRESH_S:
            return
        self._drawn_s = time.monotonic()
        self._progress.update(self._run, completed=ended)
        self._progress.refresh()

    def end(self) -> None:
        """End the run."""
        self._progress.advance(self._runs)
        self._progress.refresh()
