"""What an attention backend has to do."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.kv.layout import LayerShape
from orcastream.engine.kv.store import LayerCache

PLAIN_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What keys and values can be kept in as they are."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One layer's attention, beyond the tensors.

    `group` is the layer's group: which of `FlatBatch.groups` has its tables, and which window it has. `softcap` bounds
    the scores, cap * tanh(score / cap), as in Gemma 2; `sinks`, `[num_heads]`, are scores of a token without value, as
    in gpt-oss.
    """

    scale: float
    group: int = 0
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class AttentionBackend(ABC):
    """Attention over block tables. One instance serves one model; it holds no state between iterations."""

    name: str
    rank: int = 0
    """`auto` takes the available backend of the highest rank."""
    dtypes: tuple[torch.dtype, ...] = PLAIN_DTYPES
    """What queries may be in."""
    graphs: bool = False
    """Whether a batch of single tokens can be captured as a CUDA graph, and brought up to date by `follow`."""
    cache_dtypes: tuple[torch.dtype, ...] = PLAIN_DTYPES
    """The formats in which it can keep keys and values."""

    @classmethod
    def unavailable(cls, device: torch.device) -> str | None:
        """Why it cannot run on `device`; None: it can."""
        return None

    @classmethod
    def rank_on(cls, device: torch.device) -> int | None:
        """Its rank on `device`; None: `auto` never takes it there."""
        return cls.rank

    @abstractmethod
    def allocate(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """The cache of one layer, uninitialised; slots that nobody wrote are never read."""

    @abstractmethod
    def plan(self, batch: FlatBatch, dtype: torch.dtype) -> Any:
        """What all layers of an iteration share, computed once and handed to `attend`, whose queries have `dtype`.

        Whatever has to go to the device goes here: nothing is copied from the host within `attend`.
        """

    def follow(self, plan: Any, batch: FlatBatch) -> None:
        """Bring `plan` up to date in place, for `batch` has changed in place: as many spans, of one token each.

        Only with `graphs`. All that a graph reads stays where it is.
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
    """Class decorator: make a backend known under `name`, the value of EngineConfig.attention_backend."""

    def decorate(backend: type[AttentionBackend]) -> type[AttentionBackend]:
        backend.name = name
        BACKENDS[name] = backend
        return backend

    return decorate


def choose_backend(
    name: str, device: torch.device, dtype: torch.dtype, cache_dtype: torch.dtype | None = None
) -> AttentionBackend:
    """The backend of that name, or for `auto` the best that keeps a model's keys and values in `cache_dtype`.

    `dtype` is that of the model, and of the cache unless said otherwise. ValueError where there is none.
    """
    if name == "auto":
        wanted = cache_dtype or dtype
        ranked = {
            backend: (wanted in backend.cache_dtypes, rank)
            for backend in BACKENDS.values()
            if (rank := backend.rank_on(device)) is not None and _unfit(backend, device, dtype) is None
        }
        return max(ranked, key=ranked.__getitem__)()
    backend = BACKENDS.get(name)
    if backend is None:
        raise ValueError(f"attention_backend: got {name!r}, allowed: auto, {', '.join(BACKENDS)}")
    reason = _unfit(backend, device, dtype)
    if reason is not None:
        raise ValueError(f"attention_backend: {name} cannot run here: {reason}")
    return backend()


def _unfit(backend: type[AttentionBackend], device: torch.device, dtype: torch.dtype) -> str | None:
    if dtype not in backend.dtypes:
        return f"it does not compute in {str(dtype).removeprefix('torch.')}"
    reason = backend.unavailable(device)
    return None if reason is None else f"{reason} (device {device})"
