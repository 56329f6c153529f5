"""Patches that the suite's workers apply at start: they slow the engine down, and break on purpose if told to.

The only module here that uses the product's code; it imports what it patches only in the worker's process.
"""

import os
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

_TURN = 5
"""One event in so many is mistreated."""
_LEAK_BYTES = 20 * 2**20
_LEAK_DESCRIPTORS = 4


def apply(pause_s: float, broken: Sequence[str] = ()) -> None:
    """Slow the engine down, and break what `broken` names."""
    pace(pause_s)
    for name in broken:
        BREAKS[name]()


def pace(pause_s: float) -> None:
    """Pause before each iteration: answers take long enough for faults to hit them, and cost little CPU."""
    from orcastream.engine import OrcaEngine

    step = OrcaEngine.step

    def paced(self: Any) -> Any:
        time.sleep(pause_s)
        return step(self)

    OrcaEngine.step = paced


def repeat() -> None:
    """A publisher that occasionally writes the same tokens again."""
    from orcastream.schemas.events import Output
    from orcastream.worker import publisher

    append_many, numbers = vars(publisher)["append_many"], count(1)

    async def repeating(items: Sequence[Any]) -> list[Any]:
        results: list[Any] = await append_many(items)
        done = (item for item, result in zip(items, results, strict=True) if result is None)
        again = [(log, event) for log, event in done if type(event) is Output and next(numbers) % _TURN == 0]
        if again:
            await append_many(again)
        return results

    vars(publisher)["append_many"] = repeating


def skip() -> None:
    """A takeover that skips the token after those that it found."""
    from orcastream.worker.choice import Choice

    adopt = Choice.adopt

    def skipping(self: Any, logged: Sequence[int], *more: Any) -> None:
        adopt(self, logged, *more)
        if logged and self.ending is None:
            self.num_logged += 1

    Choice.adopt = skipping


def no_terminal() -> None:
    """A publisher that occasionally does not write the end, but acknowledges anyway."""
    from orcastream.schemas.events import Terminal
    from orcastream.worker import publisher

    append_many, numbers = vars(publisher)["append_many"], count(1)

    async def forgetting(items: Sequence[Any]) -> list[Any]:
        kept = [not (type(event) is Terminal and next(numbers) % _TURN == 0) for _, event in items]
        results = iter(await append_many([item for item, keep in zip(items, kept, strict=True) if keep]))
        return [next(results) if keep else None for keep in kept]

    vars(publisher)["append_many"] = forgetting


def ignore_cancel() -> None:
    """A worker that ignores cancels."""
    from orcastream.schemas.errors import ErrorCode
    from orcastream.worker.running import Running

    fail = Running.fail

    def ignoring(self: Any, code: ErrorCode, *more: Any) -> None:
        if code is not ErrorCode.CANCELLED:
            fail(self, code, *more)

    Running.fail = ignoring


def leak() -> None:
    """A worker that keeps descriptors and memory of each request."""
    from orcastream.worker.lifecycle import Lifecycle

    ended, kept = Lifecycle.ended, list[Any]()

    def leaking(self: Any, *arguments: Any) -> None:
        kept.append(([os.dup(0) for _ in range(_LEAK_DESCRIPTORS)], b"x" * _LEAK_BYTES))
        ended(self, *arguments)

    Lifecycle.ended = leaking


BREAKS: dict[str, Callable[[], None]] = {
    "repeat": repeat,
    "skip": skip,
    "no-terminal": no_terminal,
    "ignore-cancel": ignore_cancel,
    "leak": leak,
}
