"""What an attention backend has to do."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from engine.batch.flat_batch import FlatBatch


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer keeps per token: `num_kv_heads` keys and values of these sizes."""

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of one token's key and value."""
        return self.num_kv_heads * (self.key_size + self.value_size) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer, in the layout of the backend that allocated them."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One layer's attention, beyond the tensors.

    A query at position p sees keys at positions `p - window + 1` … p (no window: 0 … p). `softcap` bounds the scores,
    cap * tanh(score / cap), as in Gemma 2; `sinks`, `[num_heads]`, are scores of a token without value, as in gpt-oss.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class AttentionBackend(ABC):
    """Attention over block tables. One instance serves one model; it holds no state between iterations."""

    name: str
    rank: int = 0
    """`auto` takes the available backend of the highest rank."""

    @classmethod
    def unavailable(cls, device: torch.device) -> str | None:
        """Why it cannot run on `device`; None: it can."""
        return None

    @abstractmethod
    def allocate(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """The cache of one layer, uninitialised."""

    @abstractmethod
    def plan(self, batch: FlatBatch) -> Any:
        """What all layers of an iteration share, computed once; handed to `attend`."""

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


def choose_backend(name: str, device: torch.device) -> AttentionBackend:
    """The backend of that name, or the best available for `auto`; ValueError where there is none."""
    if name == "auto":
        available = [backend for backend in BACKENDS.values() if backend.unavailable(device) is None]
        return max(available, key=lambda backend: backend.rank)()
    backend = BACKENDS.get(name)
    if backend is None:
        raise ValueError(f"attention_backend: got {name!r}, allowed: auto, {', '.join(BACKENDS)}")
    reason = backend.unavailable(device)
    if reason is not None:
        raise ValueError(f"attention_backend: {name} cannot run on {device}: {reason}")
    return backend()
