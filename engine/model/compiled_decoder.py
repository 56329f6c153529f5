"""Computes a whole decoder of the common kind in one native call."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from transformers import PreTrainedModel

from orcastream.engine.attention.base import AttentionBackend
from orcastream.engine.attention.native_backend import NativeBackend, NativePlan, addresses
from orcastream.engine.batch.flat_batch import FlatBatch, IntArray
from orcastream.engine.kv.store import LayerCache
from orcastream.engine.model.adapters.adapter import Adapter
from orcastream.engine.model.adapters.adapter_rows import AdapterRows
from orcastream.engine.model.compiled_model import CompiledModel
from orcastream.engine.model.decoder_model import ATTRIBUTE, DecoderModel
from orcastream.engine.native import decoder as native
from orcastream.engine.native.library import library
from orcastream.engine.native.linear import PackedLinear
from orcastream.engine.native.maxima import RowMaxima

_LINE_BYTES = 64
"""Rows of the working memory are an odd number of cache lines of this size apart, see native/src/decoder.h."""


class CompiledDecoder:
    """Computes flat batches for one runner; several may share the model, each with separate memory."""

    @classmethod
    def of(cls, model: PreTrainedModel, backend: AttentionBackend) -> "CompiledDecoder | None":
        """Return a decoder that computes `model` with `backend`; None if its modules must compute it."""
        decoder: DecoderModel[Any] | None = getattr(model, ATTRIBUTE, None)
        if decoder is None or not isinstance(decoder.head, PackedLinear) or not isinstance(backend, NativeBackend):
            return None
        return cls(decoder)

    def __init__(self, model: DecoderModel[PackedLinear]) -> None:
        self.model = model
        dtype = model.dtype
        self._compiled = CompiledModel(model)
        self._strides = {name: _stride(width, dtype) for name, width in self._compiled.widths().items()}
        self._memory = torch.empty(0, dtype=dtype)
        self._of_adapters: WeakKeyDictionary[Adapter, ctypes.Array[ctypes.Array[native.LowRank]]] = WeakKeyDictionary()
        self._angles: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._num_positions = 0
        self._caches: _Caches | None = None

    def takes(self, adapters: Sequence[AdapterRows]) -> bool:
        """Whether it computes iterations with these adapters: any, if no layer has a mixture of experts."""
        return not adapters or not self._compiled.has_mixtures

    def forward(
        self,
        batch: FlatBatch,
        plan: NativePlan,
        caches: Sequence[LayerCache],
        groups: Sequence[int],
        adapters: Sequence[AdapterRows] = (),
        *,
        maxima: RowMaxima | None = None,
        begins: Callable[[], None],
    ) -> torch.Tensor:
        """Return logits `[len(batch.logit_rows), vocab]`, and write their `maxima`.

        `groups` has the group of each layer.
        `begins` is called right before the call that releases the interpreter to other threads.
        """
        model, num_tokens = self.model, batch.input_ids.shape[1]
        tables = self._tables_of(batch)
        logits = torch.empty(len(batch.logit_rows), model.head.n, dtype=model.dtype)
        if self._caches is None or not self._caches.are(caches):
            self._caches = _Caches(caches, groups)
        attention = NativeBackend.group_calls(
            plan,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            key_size=model.head_size,
            scale=model.scale,
            softcap=model.factors.softcap,
            dtype=model.dtype,
            cache_dtype=caches[0].keys.dtype,
        )
        kept = [_kept_rows(batch, each) for each in adapters]  # must stay alive until the call returns
        given = (native.Adapter * len(adapters))(*map(self._adapter, adapters, kept))
        call = native.DecoderCall(
            ids=batch.input_ids.data_ptr(),
            positions=batch.position_ids.data_ptr(),
            tables=ctypes.addressof(tables),
            rows=batch.logit_rows.data_ptr(),
            logits=logits.data_ptr(),
            highest=None if maxima is None else maxima.values.data_ptr(),
            likeliest=None if maxima is None else maxima.places.data_ptr(),
            caches=ctypes.addressof(self._caches.places),
            attention=ctypes.addressof(attention),
            adapters=ctypes.addressof(given) if adapters else None,
            num_tokens=num_tokens,
            num_rows=len(batch.logit_rows),
            num_adapters=len(adapters),
            **self._places(num_tokens, adapters),
        )
        decode, model_at, call_at = library().orca_decode, ctypes.byref(self._compiled.structure), ctypes.byref(call)
        begins()
        decode(model_at, call_at, plan.threads)
        if maxima is not None:
            maxima.found = True
        return logits

    def _adapter(self, given: AdapterRows, kept: IntArray) -> native.Adapter:
        layers = self._of_adapters.get(given.adapter)
        if layers is None:
            layers = (native.AdapterLayer * len(self.model.layers))()
            for place, layer in zip(layers, self.model.layers, strict=True):
                for low_rank, site in zip(place, layer.sites, strict=True):
                    change = given.adapter.changes.get(site)
                    if change is not None:
                        low_rank.down, low_rank.up = change.addresses
            self._of_adapters[given.adapter] = layers
        return native.Adapter(
            layers=ctypes.addressof(layers),
            rows=given.rows.ctypes.data,
            kept=kept.ctypes.data,
            num_rows=len(given.rows),
            num_kept=len(kept),
        )

    def _places(self, num_tokens: int, adapters: Sequence[AdapterRows]) -> dict[str, int | native.Buffer]:
        """Return the working memory of a call."""
        sizes = {name: num_tokens * stride for name, stride in self._strides.items()}
        if adapters:
            most = max(len(each.rows) for each in adapters)
            inputs = ("normed", "attended", "gated")
            sizes["gathered"] = most * max(self._strides[name] for name in inputs)
            sizes["inner"] = most * max(each.adapter.widest_rank for each in adapters)
            sizes["added"] = most * max(self._strides[name] for name in ("projected", "gate_up", "change"))
        wanted = sum(sizes.values())
        if len(self._memory) < wanted:
            self._memory = torch.empty(wanted, dtype=self._memory.dtype)
        places: dict[str, int | native.Buffer] = {}
        at = self._memory.data_ptr()
        for name, size in sizes.items():
            stride = self._strides.get(name)
            places[name] = at if stride is None else native.Buffer(at, stride)
            at += size * self._memory.element_size()
        return places

    def _tables_of(self, batch: FlatBatch) -> ctypes.Array[native.AngleTable]:
        """Return tables with cosines and sines of the batch's positions, which grow with the longest context."""
        longest, rotary = int(batch.contexts.max()), self.model.rotary
        if longest > self._num_positions:
            roomy = max(longest, 2 * self._num_positions, 256)
            positions = torch.arange(min([roomy, *(edge for edge in rotary.edges if edge >= longest)]))
            self._num_positions = len(positions)
            parts = (table(positions) for table in rotary.tables)
            self._angles = [(cosines.contiguous(), sines.contiguous()) for cosines, sines in parts]
            places = (native.AngleTable(*(part.data_ptr() for part in angles)) for angles in self._angles)
            self._tables = (native.AngleTable * len(self._angles))(*places)
        return self._tables


class _Caches:
    """The places of all layers' caches, which are allocated together, and not kept alive here."""

    def __init__(self, caches: Sequence[LayerCache], groups: Sequence[int]) -> None:
        self._first = ref(caches[0].keys)
        places = (native.LayerCache(*addresses(cache), group) for cache, group in zip(caches, groups, strict=True))
        self.places = (native.LayerCache * len(caches))(*places)

    def are(self, caches: Sequence[LayerCache]) -> bool:
        """Whether they are the places of these caches."""
        return self._first() is caches[0].keys


def _stride(width: int, dtype: torch.dtype) -> int:
    """Return the number of values from row to row in working memory."""
    lines = -(-width * dtype.itemsize // _LINE_BYTES) | 1
    return lines * _LINE_BYTES // dtype.itemsize


def _kept_rows(batch: FlatBatch, given: AdapterRows) -> IntArray:
    """Return which rows of the logits, `[n]`, ascending, belong to tokens that the adapter changes."""
    return np.flatnonzero(np.isin(batch.logit_rows.numpy(), given.rows))
