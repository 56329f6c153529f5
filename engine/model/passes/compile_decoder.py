"""The pass that computes a whole decoder of the common kind in one call."""

import logging
from typing import Any

from transformers import PreTrainedModel

from orcastream.engine.model.decoder_model import ATTRIBUTE
from orcastream.engine.model.passes.base import Pass, register
from orcastream.engine.model.passes.merge_projections import MergedLinearLayer
from orcastream.engine.model.passes.pack_linears import PackedEmbedding, PackedLinearLayer
from orcastream.engine.model.passes.recognize import OtherKind, expect, recognize
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
            setattr(model, ATTRIBUTE, recognize(model, _PackedLayers()))
        except (OtherKind, AttributeError) as error:
            _log.info("the decoder is computed module by module: %s", error)
            return 0
        return 1


class _PackedLayers:
    """The packed products of layers that earlier passes have packed and merged."""

    def single(self, layer: Any) -> PackedLinear:
        expect(isinstance(layer, PackedLinearLayer), f"{type(layer).__name__} is not packed")
        packed: PackedLinear = layer.packed
        return packed

    def merged(self, *layers: Any) -> PackedLinear:
        expect(all(isinstance(layer, MergedLinearLayer) for layer in layers), "projections are not merged")
        merged = layers[0].merged
        places = [(layer.merged is merged, layer.index) for layer in layers]
        expect(places == [(True, index) for index in range(len(layers))], "projections are merged otherwise")
        expect(len(merged.widths) == len(layers), "projections are merged with others")
        packed: PackedLinear = merged.packed
        return packed

    def shared(self, embedding: Any) -> PackedLinear:
        expect(isinstance(embedding, PackedEmbedding), f"embeddings of another kind: {type(embedding).__name__}")
        expect(embedding.scale is None, "embeddings that are scaled")
        packed: PackedLinear = embedding.packed
        return packed
