"""The interface of attention backends."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.errors import one_line
from orcastream.engine.extensions import adding
from orcastream.engine.kv.layout import LayerShape
from orcastream.engine.kv.store import LayerCache

_log = logging.getLogger(__name__)

PLAIN_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes in which keys and values can be stored without quantization."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One layer's attention, beyond the tensors.

    `group` is the index of the layer's group in `FlatBatch.groups`, which has its tables and window. `softcap` bounds
    the scores, cap * tanh(score / cap), as in Gemma 2; `sinks`, `[num_heads]`, are scores of a token without a value,
    as in gpt-oss.
    """

    scale: float
    group: int = 0
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class AttentionBackend(ABC):
    """Attention over block tables. One instance serves one model; it holds no state between iterations."""

    name: ClassVar[str]
    rank: int = 0
    """`auto` chooses the available backend with the highest rank."""
    dtypes: tuple[torch.dtype, ...] = PLAIN_DTYPES
    """Dtypes that queries may have."""
    graphs: bool = False
    """Whether a batch of single tokens can be captured as a CUDA graph, and updated by `follow`."""
    cache_dtypes: tuple[torch.dtype, ...] = PLAIN_DTYPES
    """Formats in which it can store keys and values."""

    @classmethod
    def unavailable(cls, device: torch.device) -> str | None:
        """Return why it cannot run on `device`, or None if it can."""
        return None

    @classmethod
    def rank_on(cls, device: torch.device) -> int | None:
        """Return its rank on `device`, or None if `auto` never chooses it there."""
        return cls.rank

    @abstractmethod
    def allocate(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """Return the uninitialized cache of one layer; slots that were never written are never read."""

    @abstractmethod
    def plan(self, batch: FlatBatch, dtype: torch.dtype) -> Any:
        """Compute once what all layers of an iteration share, for `attend`, whose queries have `dtype`.

        All transfers to the device happen here: `attend` copies nothing from the host.
        """

    def follow(self, plan: Any, batch: FlatBatch) -> None:
        """Update `plan` in place for `batch`, which has changed in place: as many spans, of one token each.

        Only with `graphs`. All memory that a graph reads keeps its address.
        """
        raise NotImplementedError(f"attention backend {self.name} has no graphs")

    @abstractmethod
    def attend(
        self,
        plan: Any,
        cache: LayerCache,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        call: AttentionCall,
    ) -> torch.Tensor:
        """Store `key` and `value` in `cache`, then attend.

        query `[num_heads, num_tokens, key_size]`, key and value `[num_kv_heads, num_tokens, size]`, in the order of the
        flat batch; returns `[num_tokens, num_heads, value_size]`.
        """


BACKENDS: dict[str, type[AttentionBackend]] = {}


def register(name: str) -> Callable[[type[AttentionBackend]], type[AttentionBackend]]:
    """Class decorator: register a backend under `name`, its value of EngineConfig.attention_backend."""
    return adding(BACKENDS, name)


def choose_backend(
    name: str, device: torch.device, dtype: torch.dtype, cache_dtype: torch.dtype | None = None
) -> AttentionBackend:
    """Return the backend with that name, or for `auto` the best one that stores keys and values in `cache_dtype`.

    `dtype` is that of the model, and by default of the cache. Raises ValueError if there is none.
    """
    if name == "auto":
        wanted = cache_dtype or dtype
        ranked = {
            backend: (wanted in backend.cache_dtypes, rank)
            for backend in BACKENDS.values()
            if (rank := _rank(backend, device, dtype)) is not None
        }
        return max(ranked, key=ranked.__getitem__)()
    backend = BACKENDS.get(name)
    if backend is None:
        raise ValueError(f"attention_backend: got {name!r}, allowed: auto, {', '.join(BACKENDS)}")
    reason = _unfit(backend, device, dtype)
    if reason is not None:
        raise ValueError(f"attention_backend: {name} cannot run here: {reason}")
    return backend()


def _rank(backend: type[AttentionBackend], device: torch.device, dtype: torch.dtype) -> int | None:
    """Return the rank that the backend has for `auto`, or None; a faulty backend of another package has none."""
    try:
        rank = backend.rank_on(device)
        return rank if rank is None or _unfit(backend, device, dtype) is None else None
    except Exception as error:
        _log.warning("attention backend %s is left out: %s: %s", backend.name, type(error).__name__, one_line(error))
        return None


def _unfit(backend: type[AttentionBackend], device: torch.device, dtype: torch.dtype) -> str | None:
    if dtype not in backend.dtypes:
        return f"it does not compute in {str(dtype).removeprefix('torch.')}"
    reason = backend.unavailable(device)
    return None if reason is None else f"{reason} (device {device})"
