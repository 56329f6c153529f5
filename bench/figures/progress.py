"""Progress bars on standard error, drawn now and then by the loop that measures: no thread of their own beside it."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_REFRESH_S = 0.5


class RunBars:
    """One bar of the runs, one of the requests of the present run; silent where standard error is no terminal."""

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
        """A run begins; `requests` None: nobody knows how many."""
        self._progress.reset(self._run, description=description, total=requests)
        self._progress.refresh()

    def update(self, ended: int) -> None:
        """So many requests of the run have ended."""
        if time.monotonic() - self._drawn_s < _REFRESH_S:
            return
        self._drawn_s = time.monotonic()
        self._progress.update(self._run, completed=ended)
        self._progress.refresh()

    def end(self) -> None:
        """The run is over."""
        self._progress.advance(self._runs)
        self._progress.refresh()
