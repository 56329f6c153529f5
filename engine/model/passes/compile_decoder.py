"""The pass that computes a whole decoder of the common kind in one call."""

import logging
from typing import Any

import torch
from transformers import PreTrainedModel

from orcastream.engine.model.decoder_model import ATTRIBUTE, Mixture
from orcastream.engine.model.passes.base import Pass, register
from orcastream.engine.model.passes.merge_projections import MergedLinearLayer
from orcastream.engine.model.passes.other_kind import OtherKind, expect
from orcastream.engine.model.passes.pack_linears import PackedEmbedding, PackedLinearLayer
from orcastream.engine.model.passes.recognize import recognize
from orcastream.engine.model.passes.recognize_mixture import recognize_mixture
from orcastream.engine.native.linear import PackedLinear

_log = logging.getLogger(__name__)


@register("compile_decoder")
class CompileDecoder(Pass):
    """One call computes all layers of Llama, Mistral, Qwen and similar models.

    The self-check, which computes with the DecoderModel that this pass attaches, detects parts that only look alike.
    """

    def apply(self, model: PreTrainedModel) -> int:
        """Attach a DecoderModel to the model and return 1; log and return 0 if it is of another kind."""
        try:
            setattr(model, ATTRIBUTE, recognize(model, PackedLayers(model.dtype)))
        except (OtherKind, AttributeError) as error:
            _log.info("the decoder is computed module by module: %s", error)
            return 0
        return 1


class PackedLayers:
    """The packed products of layers that earlier passes have packed and merged, for rows in `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def single(self, layer: Any) -> PackedLinear:
        expect(isinstance(layer, PackedLinearLayer), f"{type(layer).__name__} is not packed")
        packed: PackedLinear = layer.packed
        self._expect_format(packed.dtype)
        return packed

    def merged(self, *layers: Any) -> PackedLinear:
        expect(all(isinstance(layer, MergedLinearLayer) for layer in layers), "projections are not merged")
        merged = layers[0].merged
        places = [(layer.merged is merged, layer.index) for layer in layers]
        expect(places == [(True, index) for index in range(len(layers))], "projections are merged otherwise")
        expect(len(merged.widths) == len(layers), "projections are merged with others")
        packed: PackedLinear = merged.packed
        self._expect_format(packed.dtype)
        return packed

    def mixture(self, mlp: Any) -> Mixture[PackedLinear]:
        found = recognize_mixture(mlp, self, self._dtype)
        for each in (found.gate_up[0], found.down[0]):
            self._expect_format(each.dtype)
        return found

    def shared(self, embedding: Any) -> PackedLinear:
        expect(isinstance(embedding, PackedEmbedding), f"embeddings of another kind: {type(embedding).__name__}")
        packed: PackedLinear = embedding.packed
        self._expect_format(packed.dtype)
        return packed

    def _expect_format(self, dtype: torch.dtype) -> None:
        expect(dtype in (self._dtype, torch.int8), f"weights in {dtype} for rows in {self._dtype}")
