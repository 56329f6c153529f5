"""Attention over a paged KV cache: one small interface, and a registry of its implementations.

A backend of another package is registered when its module is imported, or at once if the package declares that module
as an entry point of the group `orcastream.attention_backends`.
"""

from orcastream.engine.attention.base import BACKENDS, AttentionBackend, AttentionCall, choose_backend
from orcastream.engine.attention.flashinfer_backend import FlashInferBackend
from orcastream.engine.attention.native_backend import NativeBackend
from orcastream.engine.attention.torch_backend import TorchBackend
from orcastream.engine.attention.triton_backend import TritonBackend
from orcastream.engine.attention.varlen_backend import VarlenBackend
from orcastream.engine.extensions import load_extensions

load_extensions("orcastream.attention_backends")

__all__ = [
    "BACKENDS",
    "AttentionBackend",
    "AttentionCall",
    "FlashInferBackend",
    "NativeBackend",
    "TorchBackend",
    "TritonBackend",
    "VarlenBackend",
    "choose_backend",
]
