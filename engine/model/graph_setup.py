"""Decides whether decodes are replayed from CUDA graphs, and captures these."""

import logging
import time

import torch

from orcastream.engine.batch.static_batch import StaticBatch
from orcastream.engine.config import EngineConfig
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.model.graphs import CudaRecorder, DecodeGraphs, ladder
from orcastream.engine.model.runner import ModelRunner

_log = logging.getLogger(__name__)

_LARGEST = 512
"""Beyond this many requests an iteration computes long enough for Python to keep up."""


def make_graphs(config: EngineConfig, runner: ModelRunner, cache: KVCache) -> DecodeGraphs | None:
    """Return captured graphs for batches of up to `max_batch_size` decodes; None if iterations run without graphs.

    Raises ValueError if `cuda_graphs` is on but impossible. With auto a model that cannot be captured (e.g. one that
    reads a value from the device between its layers) runs without graphs, and the log says why.
    """
    reason = _against(runner)
    if config.cuda_graphs == "on" and reason is not None:
        raise ValueError(f"cuda_graphs: got 'on', allowed {reason}: auto, off")
    if config.cuda_graphs == "off" or reason is not None:
        return None
    largest = min(config.num_places, _LARGEST)
    graphs = DecodeGraphs(runner, StaticBatch.beside(cache, largest, runner.device), CudaRecorder())
    begun_s = time.monotonic()
    try:
        graphs.capture(ladder(largest))
    except (RuntimeError, NotImplementedError) as error:  # torch.OutOfMemoryError is one
        if config.cuda_graphs == "on" and not graphs.sizes:
            raise ValueError(f"cuda_graphs: got 'on', allowed for this model: auto, off ({error})") from error
        _log.warning("decode iterations are captured only for sizes %s: %s", graphs.sizes, error)
    torch.cuda.synchronize(runner.device)
    _log.info("captured %d sizes of decode batches in %.1f s", len(graphs.sizes), time.monotonic() - begun_s)
    return graphs if graphs.sizes else None


def _against(runner: ModelRunner) -> str | None:
    """Return what rules out graphs, as a phrase such as `on device cpu`; None if nothing does."""
    if runner.device.type != "cuda":
        return f"on device {runner.device.type}"
    if not runner.backend.graphs:
        return f"with attention backend {runner.backend.name}"
    return None
