"""CUDA graphs, which replace torch.cuda.CUDAGraph: they record work during a capture and repeat it on replay."""

from collections.abc import Callable

import torch

from tests.engine.emulated_cuda import registry


class CUDAGraph:
    """A list of work that the device recorded instead of running it.

    The recorded work keeps its tensors, so each replay reads and writes the same memory.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self._work: list[Callable[[], object]] = []
        self._captured = False

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global", **others: object) -> None:
        """Record the work that the host launches from now on.

        The arguments exist because torch has them; all are ignored. Raises RuntimeError on the default stream and
        during another capture.
        """
        device = registry.current()
        if device.capturing is not None or device.current_stream() is device.default_stream:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream, one at a time")
        device.capturing, device.broken = self, False

    def capture_end(self) -> None:
        """Stop recording. Raises torch.AcceleratorError if the host did something forbidden during the capture."""
        device = registry.current()
        device.capturing = None
        if device.broken:
            device.spoiled = True
            raise torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture")
        self._captured = True

    def add(self, work: Callable[[], object]) -> None:
        """Record `work`, which would otherwise be added to a stream."""
        self._work.append(work)

    def replay(self) -> None:
        """Launch the recorded work on the current stream. Raises RuntimeError unless a capture has succeeded."""
        if not self._captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        for work in self._work:
            registry.current().launch(work)
