"""CUDA graphs of decode-only iterations, captured once and replayed: one call launches all kernels."""

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from orcastream.engine.attention.base import AttentionBackend
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.batch.static_batch import StaticBatch

_log = logging.getLogger(__name__)

_LONGEST_S = 30.0
"""Time after which no further size is begun."""

_LEAST_FREE = 0.02
"""Share of the device's memory below which no further size is begun."""


class Computer(Protocol):
    """The part of a ModelRunner that is captured."""

    backend: AttentionBackend

    def plan(self, batch: FlatBatch) -> Any:
        """Return the attention plan that all layers share."""

    def compute(self, batch: FlatBatch, plan: Any = None) -> torch.Tensor:
        """Return logits `[num_spans, vocab]`."""


Recorder = Callable[[Callable[[], torch.Tensor]], tuple[Callable[[], object], torch.Tensor]]
"""Turns a computation into a function that repeats it, and the tensor that receives the result of each repetition."""


@dataclass(frozen=True, slots=True)
class _Captured:
    batch: FlatBatch
    plan: Any
    replay: Callable[[], object]
    logits: torch.Tensor


class DecodeGraphs:
    """A ladder of batch sizes; a batch of decodes is padded to the next size.

    `capture` starts with the largest, whose memory the smaller ones reuse. A replay repeats the same work on the same
    memory, so all data that changes between iterations is copied into place before.
    """

    def __init__(self, computer: Computer, static: StaticBatch, recorder: Recorder) -> None:
        self._computer = computer
        self._static = static
        self._recorder = recorder
        self._captured: dict[int, _Captured] = {}

    @property
    def sizes(self) -> list[int]:
        """The captured sizes, smallest first."""
        return sorted(self._captured)

    def capture(self, sizes: Sequence[int]) -> None:
        """Capture these sizes, largest first, until time or memory runs out."""
        begun_s = time.monotonic()
        for size in sorted(sizes, reverse=True):
            if time.monotonic() - begun_s > _LONGEST_S or _memory_is_short():
                _log.warning("graphs only for %d requests and more: no time or memory left", min(self.sizes, default=0))
                return
            batch = self._static.first(size)
            plan = self._computer.plan(batch)
            replay, logits = self._recorder(partial(self._computer.compute, batch, plan))
            self._captured[size] = _Captured(batch, plan, replay, logits)

    def take(self, batch: FlatBatch) -> bool:
        """Whether `batch` can be replayed: only decodes, each with its logits, not too many, and without adapters,
        whose rows differ in each iteration."""
        decodes = batch.num_single == batch.num_spans == len(batch.logit_spans)
        return decodes and batch.adapters is None and batch.num_spans <= max(self._captured, default=0)

    @torch.inference_mode()
    def replay(self, batch: FlatBatch) -> torch.Tensor:
        """Return logits `[num_spans, vocab]`; only for a batch for which `take` returns True."""
        size = min(size for size in self._captured if size >= batch.num_spans)
        found = self._captured[size]
        self._static.load(batch, size)
        self._computer.backend.follow(found.plan, found.batch)
        found.replay()
        return found.logits[: batch.num_spans].clone()


class CudaRecorder:
    """Records CUDA graphs that share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # One stream for all warm-ups: cuBLAS keeps a workspace (32 MiB on Hopper) for every stream that it has seen.
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        """Compute once as a warm-up, which compiles kernels and makes libraries allocate, once to see whether it waits
        for the device, then capture. Raises RuntimeError if it waits."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            compute()
            with _no_waits():
                compute()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # If a capture fails, torch leaves its own stream current; the outer block restores the previous one.
        with torch.cuda.stream(current), torch.cuda.graph(graph, pool=self._pool):
            result = compute()
        return graph.replay, result


@contextmanager
def _no_waits() -> Iterator[None]:
    """Let operators that wait for the device raise RuntimeError.

    In a capture they would fail, too, but a failed capture keeps its memory, and with torch 2.11 every later
    `torch.cuda.empty_cache()` fails (https://github.com/pytorch/pytorch/pull/180395).
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that not all waits are detected
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def ladder(largest: int) -> list[int]:
    """Return batch sizes up to `largest`: at most a fifth of the rows of a large batch are padding."""
    sizes = [1, 2, 4, 8]
    while sizes[-1] < largest:
        sizes.append(sizes[-1] + max(8, 2 ** (sizes[-1].bit_length() - 3)))
    return [size for size in sizes if size < largest] + [largest]


def _memory_is_short() -> bool:
    if not torch.cuda.is_available():
        return False
    free, total = torch.cuda.mem_get_info()
    return free < total * _LEAST_FREE
