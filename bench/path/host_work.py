"""The host's work in an iteration besides the forward pass: the demo model's engine with precomputed logits."""

import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from orcastream import demo
from orcastream.engine import EngineConfig, IterationRecord, OrcaEngine, Request
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.native.maxima import RowMaxima
from orcastream.schemas.sampling import SamplingParams

_PROMPT_TOKENS = 32
_WARM_UP = 20
_PARTS = ("select_s", "build_s", "sample_s")


@dataclass(frozen=True)
class HostWork:
    """Medians per iteration of `running` decoding requests, in milliseconds of the thread's own time.

    `select_ms`, `build_ms` and `sample_ms` are parts of `total_ms`, by wall clock; the rest is `advance`, which
    accounts for the tokens and creates their events.
    """

    running: int
    total_ms: float
    select_ms: float
    build_ms: float
    sample_ms: float


def host_work(running: int, iterations: int) -> HostWork:
    """Decode `iterations` times; the events are kept, as in an outbox."""
    torch.set_num_threads(1)
    engine = OrcaEngine.load(
        EngineConfig(
            model=str(demo.MODEL_DIR),
            device="cpu",
            self_check=False,
            max_batch_size=running,
            max_num_batched_tokens=8192,
            prefix_cache=False,
            kv_cache_memory=(running + 1) * (_PROMPT_TOKENS + iterations + _WARM_UP + 32) * _bytes_per_token(),
        )
    )
    most = iterations + _WARM_UP + 8
    for index in range(running):
        prompt = tuple(range(20 + index % 7, 20 + index % 7 + _PROMPT_TOKENS))
        engine.submit(
            Request(f"host-{index}", prompt, SamplingParams(max_tokens=most, temperature=0.0, ignore_eos=True))
        )
    engine.step()
    _without_forward(engine)
    outbox: deque[Any] = deque(maxlen=4)
    total_ms, parts = [], []
    for number in range(_WARM_UP + iterations):
        begun_ns = time.thread_time_ns()
        outbox.append(engine.step())
        took_ms = (time.thread_time_ns() - begun_ns) / 1e6
        if number >= _WARM_UP and engine.last_iteration is not None:
            total_ms.append(took_ms)
            parts.append(engine.last_iteration)
    if len(outbox[-1]) != running:
        raise RuntimeError(f"{len(outbox[-1])} requests decoded, not {running}")
    return HostWork(running, statistics.median(total_ms), *(_median_ms(parts, name) for name in _PARTS))


def _median_ms(records: Sequence[IterationRecord], name: str) -> float:
    return 1000 * float(statistics.median(getattr(record, name) for record in records))


def _without_forward(engine: OrcaEngine) -> None:
    """Replace the model by one that immediately returns the same logits each time."""
    vocabulary = engine.limits.vocab_size
    logits = torch.randn(engine.config.num_places, vocabulary, generator=torch.Generator().manual_seed(0))

    def forward(batch: FlatBatch, maxima: RowMaxima | None = None) -> torch.Tensor:
        return logits[: len(batch.logit_rows)]

    engine._runner.forward = forward  # type: ignore[method-assign]  # of this engine alone


def _bytes_per_token() -> int:
    """Return more bytes than the demo model's cache needs per token."""
    return 16 * 1024
