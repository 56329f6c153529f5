"""The memory of the fuzzed processes as a function of the number of inputs."""

import time
from collections.abc import Callable
from typing import Final

from tests.fuzz.target import Violation

_PARTS: Final = 10
_MOST_MORE_BYTES: Final = 32 * 2**20
"""In the second half of a run."""
_WARM_INPUTS: Final = 5_000
"""Before so many a process still loads what it needs on first use: a shorter half says nothing of its memory."""
_SETTLE_S: Final = 2.0


class MemoryCurve:
    """Samples at the beginning and after each tenth of `count` inputs."""

    def __init__(self, look: Callable[[], dict[str, int]], count: int) -> None:
        """`look` returns bytes by process."""
        self._look = look
        self._step = count / _PARTS
        self._samples = [(0, look())]

    def given(self, inputs: int) -> None:
        """Take a sample if another tenth of the inputs is complete."""
        if inputs >= self._step * len(self._samples):
            time.sleep(_SETTLE_S)
            self._samples.append((inputs, self._look()))

    def grown(self) -> list[Violation]:
        """Return the processes that have grown too much since the middle sample."""
        inputs, middle = self._samples[len(self._samples) // 2]
        last = self._samples[-1][1]
        if inputs < _WARM_INPUTS:
            return []
        return [
            Violation(
                "memory", f"{name} has {(last.get(name, 0) - size) / 2**20:.0f} MiB more than after {inputs} inputs"
            )
            for name, size in middle.items()
            if last.get(name, 0) - size > _MOST_MORE_BYTES
        ]

    @property
    def mib(self) -> dict[str, list[int]]:
        """Return all samples, by process."""
        return {name: [sizes.get(name, 0) >> 20 for _, sizes in self._samples] for name in self._samples[0][1]}
