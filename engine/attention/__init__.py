"""Attention over a paged KV cache: one small interface, and a registry of its implementations."""

from orcastream.engine.attention.base import BACKENDS, AttentionBackend, AttentionCall, choose_backend
from orcastream.engine.attention.native_backend import NativeBackend
from orcastream.engine.attention.torch_backend import TorchBackend
from orcastream.engine.attention.triton_backend import TritonBackend

__all__ = [
    "BACKENDS",
    "AttentionBackend",
    "AttentionCall",
    "NativeBackend",
    "TorchBackend",
    "TritonBackend",
    "choose_backend",
]
