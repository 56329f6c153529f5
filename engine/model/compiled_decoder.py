"""A whole decoder of the common kind, computed by one call."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from engine.attention.base import AttentionBackend
from engine.attention.native_backend import NativeBackend, NativePlan
from engine.batch.flat_batch import FlatBatch
from engine.kv.store import LayerCache
from engine.native.formats import FORMATS
from engine.native.library import library
from engine.native.linear import PackedLinear

ATTRIBUTE = "orcastream_decoder"
"""Of a model: the DecoderModel that computes what it computes."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The weights of one layer: packed projections, norms in float32."""

    projections: PackedLinear
    output: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear
    input_norm: torch.Tensor
    post_norm: torch.Tensor
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderModel:
    """What native/src/decoder.h computes.

    `dtype` is that of the rows between layers. `embed` turns ids `[num_tokens]` into rows `[num_tokens, hidden_size]`,
    `rotary` positions `[num_tokens]` into float32 cosines and sines `[num_tokens, rotary_size]`.
    """

    layers: tuple[DecoderLayer, ...]
    final_norm: torch.Tensor
    head: PackedLinear
    num_heads: int
    num_kv_heads: int
    head_size: int
    rotary_size: int
    intermediate_size: int
    dtype: torch.dtype
    epsilon: float
    scale: float
    activation: int
    embed: Callable[[torch.Tensor], torch.Tensor]
    rotary: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

    @property
    def hidden_size(self) -> int:
        """Numbers of a token between layers."""
        return self.head.k


class _Layer(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_void_p)
        for name in (
            *("projections", "output", "gate_up", "down"),
            *("input_norm", "post_norm", "query_norm", "key_norm"),
        )
    ]


class _Model(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("layers", "final_norm", "head")),
        *((name, ctypes.c_int64) for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads")),
        *((name, ctypes.c_int64) for name in ("head_size", "rotary_size", "intermediate_size")),
        ("epsilon", ctypes.c_float),
        ("activation", ctypes.c_int32),
        ("format", ctypes.c_int32),
    ]


class _Call(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("hidden", "cosines", "sines", "rows", "logits")),
        *((name, ctypes.c_void_p) for name in ("normed", "projected", "attended", "gate_up", "gated", "change")),
        ("attention", ctypes.c_void_p),
        ("num_tokens", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
    ]


class CompiledDecoder:
    """Computes flat batches for one runner; several may share the model, each has memory of its own."""

    @classmethod
    def of(cls, model: PreTrainedModel, backend: AttentionBackend) -> "CompiledDecoder | None":
        """What computes `model` with `backend`; None: its modules have to."""
        decoder: DecoderModel | None = getattr(model, ATTRIBUTE, None)
        return None if decoder is None or not isinstance(backend, NativeBackend) else cls(decoder)

    def __init__(self, model: DecoderModel) -> None:
        self.model = model
        dtype = model.dtype
        self._layers = (_Layer * len(model.layers))(*(_layer(layer) for layer in model.layers))
        self._model = _Model(
            layers=ctypes.addressof(self._layers),
            final_norm=model.final_norm.data_ptr(),
            head=model.head.address,
            num_layers=len(model.layers),
            hidden_size=model.hidden_size,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_size=model.head_size,
            rotary_size=model.rotary_size,
            intermediate_size=model.intermediate_size,
            epsilon=model.epsilon,
            activation=model.activation,
            format=FORMATS[dtype],
        )
        self._widths = {
            "normed": model.hidden_size,
            "projected": (model.num_heads + 2 * model.num_kv_heads) * model.head_size,
            "attended": model.num_heads * model.head_size,
            "gate_up": 2 * model.intermediate_size,
            "gated": model.intermediate_size,
            "change": model.hidden_size,
        }
        self._memory = torch.empty(0, dtype=dtype)
        self._cosines = self._sines = torch.empty(0, model.rotary_size)

    def forward(
        self, batch: FlatBatch, plan: NativePlan, caches: Sequence[LayerCache], groups: Sequence[int]
    ) -> torch.Tensor:
        """Logits `[len(batch.logit_rows), vocab]`; `groups` has the group of each layer."""
        model, num_tokens = self.model, batch.input_ids.shape[1]
        hidden = model.embed(batch.input_ids[0])
        cosines, sines = self._angles_of(batch)
        logits = torch.empty(len(batch.logit_rows), model.head.n, dtype=hidden.dtype)
        attention = NativeBackend.layer_calls(
            plan,
            caches,
            groups,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            key_size=model.head_size,
            scale=model.scale,
            dtype=hidden.dtype,
        )
        call = _Call(
            hidden=hidden.data_ptr(),
            cosines=cosines.data_ptr(),
            sines=sines.data_ptr(),
            rows=batch.logit_rows.data_ptr(),
            logits=logits.data_ptr(),
            attention=ctypes.addressof(attention),
            num_tokens=num_tokens,
            num_rows=len(batch.logit_rows),
            **self._places(num_tokens),
        )
        library().orca_decode(ctypes.byref(self._model), ctypes.byref(call), plan.threads)
        return logits

    def _places(self, num_tokens: int) -> dict[str, int]:
        """Addresses of the memory to compute in."""
        wanted = num_tokens * sum(self._widths.values())
        if len(self._memory) < wanted:
            self._memory = torch.empty(wanted, dtype=self._memory.dtype)
        places, at = {}, self._memory.data_ptr()
        for name, width in self._widths.items():
            places[name] = at
            at += num_tokens * width * self._memory.element_size()
        return places

    def _angles_of(self, batch: FlatBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of the batch's positions, from tables that grow with the longest context."""
        longest = int(batch.contexts.max())
        if longest > len(self._cosines):
            positions = torch.arange(max(longest, 2 * len(self._cosines), 256))
            self._cosines, self._sines = (part.float().contiguous() for part in self.model.rotary(positions))
        positions = batch.position_ids[0]
        return self._cosines[positions], self._sines[positions]


def _layer(layer: DecoderLayer) -> _Layer:
    return _Layer(
        projections=layer.projections.address,
        output=layer.output.address,
        gate_up=layer.gate_up.address,
        down=layer.down.address,
        input_norm=layer.input_norm.data_ptr(),
        post_norm=layer.post_norm.data_ptr(),
        query_norm=None if layer.query_norm is None else layer.query_norm.data_ptr(),
        key_norm=None if layer.key_norm is None else layer.key_norm.data_ptr(),
    )
