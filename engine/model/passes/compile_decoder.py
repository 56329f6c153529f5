"""The pass that computes a whole decoder of the common kind in one call."""

import logging
from typing import Any

import torch
from transformers import PreTrainedModel

from orcastream.engine.model.decoder_model import ATTRIBUTE, Mixture
from orcastream.engine.model.passes.base import Pass, plain, random_inputs, register
from orcastream.engine.model.passes.merge_projections import MergedLinearLayer
from orcastream.engine.model.passes.other_kind import OtherKind, expect
from orcastream.engine.model.passes.pack_experts import FusedGate, PackedExperts
from orcastream.engine.model.passes.pack_linears import PackedEmbedding, PackedLinearLayer
from orcastream.engine.model.passes.recognize import recognize
from orcastream.engine.native.elementwise import ACTIVATIONS
from orcastream.engine.native.linear import PackedLinear

_ROWS = 16
"""With which a router is compared."""

_LEAST_SPREAD = 1e-6
"""Of scores that are not all equal."""

_log = logging.getLogger(__name__)


@register("compile_decoder")
class CompileDecoder(Pass):
    """One call computes all layers of Llama, Mistral, Qwen and similar models.

    The self-check, which computes with the DecoderModel that this pass attaches, detects parts that only look alike.
    """

    def apply(self, model: PreTrainedModel) -> int:
        """Attach a DecoderModel to the model and return 1; log and return 0 if it is of another kind."""
        try:
            setattr(model, ATTRIBUTE, recognize(model, _PackedLayers(model.dtype)))
        except (OtherKind, AttributeError) as error:
            _log.info("the decoder is computed module by module: %s", error)
            return 0
        return 1


class _PackedLayers:
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

    def mixture(self, router: Any, experts: Any) -> Mixture[PackedLinear]:
        expect(isinstance(experts, PackedExperts), f"{type(experts).__name__} are not packed")
        gate = experts.gate
        if not isinstance(gate, FusedGate):
            raise OtherKind("experts with a gate of their own")
        weight, choices, normalizes = _recognize_router(router)
        for dtype in (weight.dtype, experts.first.linears[0].dtype, experts.second.linears[0].dtype):
            self._expect_format(dtype)
        return Mixture(
            PackedLinear.pack(weight),
            experts.first.linears,
            experts.second.linears,
            choices,
            normalizes,
            ACTIVATIONS[gate.activation],
        )

    def shared(self, embedding: Any) -> PackedLinear:
        expect(isinstance(embedding, PackedEmbedding), f"embeddings of another kind: {type(embedding).__name__}")
        packed: PackedLinear = embedding.packed
        self._expect_format(packed.dtype)
        return packed

    def _expect_format(self, dtype: torch.dtype) -> None:
        expect(dtype in (self._dtype, torch.int8), f"weights in {dtype} for rows in {self._dtype}")


def _recognize_router(router: Any) -> tuple[torch.Tensor, int, bool]:
    """Return its weight, how many experts it chooses, and whether their weights add up to one.

    It returns scores, and the weights and numbers of those that it chooses by the softmax of all scores.
    """
    name = type(router).__name__
    expect(plain(router) and set(dict(router.named_parameters())) == {"weight"}, f"{name} has other weights")
    weight: torch.Tensor = router.weight.detach()
    ((x,),) = random_inputs(weight.shape[1], weight.dtype, [_ROWS])
    # Scores that hardly differ, or of which one outweighs all others, have similar weights however these are made.
    spread = torch.nn.functional.linear(x, weight).float().std(-1, correction=0).mean()
    x = x / spread.clamp(min=_LEAST_SPREAD).to(x.dtype)
    found = router(x)
    expect(isinstance(found, tuple) and len(found) == 3, f"{name} returns something else")
    scores, weights, chosen = found
    own = torch.nn.functional.linear(x, weight)
    expect(scores.dtype is own.dtype and torch.equal(scores, own), f"{name} computes other scores")
    chances = scores.float().softmax(-1)
    highest = chances.topk(chosen.shape[-1]).values
    expect(torch.equal(chances.gather(1, chosen), highest), f"{name} chooses otherwise")
    ways = {False: highest, True: highest / highest.sum(-1, keepdim=True)}
    errors = {normalizes: float((weights.float() / way - 1).abs().max()) for normalizes, way in ways.items()}
    normalizes = min(errors, key=errors.__getitem__)
    tolerance = 1e-2 if weight.dtype is torch.bfloat16 else 1e-5
    expect(errors[normalizes] <= tolerance, f"{name} weighs otherwise")
    return weight, chosen.shape[-1], normalizes
