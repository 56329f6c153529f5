"""The pass that computes a whole decoder of the common kind in few kernels on a GPU."""

import logging
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from orcastream.engine.model.decoder_model import ATTRIBUTE, DecoderModel, Factors, GatedMLP, Mixture, Norm
from orcastream.engine.model.dense_linear import DenseLinear
from orcastream.engine.model.passes.base import Pass, plain, register
from orcastream.engine.model.passes.other_kind import OtherKind, expect
from orcastream.engine.model.passes.recognize import recognize
from orcastream.engine.native.elementwise import ACTIVATIONS

_log = logging.getLogger(__name__)

_FEW_POSITIONS = 4

_GATES = (ACTIVATIONS["silu"], ACTIVATIONS["gelu_tanh"])
"""Those of triton/gated.py."""


@register("fuse_decoder")
class FuseDecoder(Pass):
    """Three kernels and four products next to attention compute a layer of Llama, Mistral, Qwen and similar models.

    The modules stay as they are, but the weights that are merged become views of the merged ones. The self-check, which
    computes with the DecoderModel that this pass attaches, detects parts that only look alike.
    """

    def apply(self, model: PreTrainedModel) -> int:
        """Attach a DecoderModel to the model and return 1; log and return 0 if it is of another kind."""
        if hasattr(model, ATTRIBUTE):
            return 1
        try:
            decoder = recognize(model, _DenseLayers(model))
            _expect_plain_kind(decoder)
            _expect_table(decoder)
        except (OtherKind, AttributeError) as error:
            _log.info("the decoder is computed module by module: %s", error)
            return 0
        finally:
            if model.device.type == "cuda":
                torch.cuda.empty_cache()  # of the separate weights, which are too small for merged ones
        setattr(model, ATTRIBUTE, decoder)
        return 1


class _DenseLayers:
    """Products with the weights of layers of `model`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._device, self._dtype = model.device, model.dtype

    def single(self, layer: Any) -> DenseLinear:
        self._expect_plain(layer)
        return DenseLinear.of(layer)

    def merged(self, *layers: Any) -> DenseLinear:
        for layer in layers:
            self._expect_plain(layer)
        return DenseLinear.merge(layers)

    def mixture(self, mlp: Any) -> Mixture[DenseLinear]:
        raise OtherKind(f"a mixture of experts: {type(mlp).__name__}")

    def shared(self, embedding: Any) -> DenseLinear:
        raise OtherKind(f"embeddings of another kind: {type(embedding).__name__}")

    def _expect_plain(self, layer: Any) -> None:
        expect(type(layer) is nn.Linear and plain(layer), f"{type(layer).__name__} is no plain linear layer")
        expect((layer.weight.device, layer.weight.dtype) == (self._device, self._dtype), "weights of several kinds")


def _expect_plain_kind(model: DecoderModel[DenseLinear]) -> None:
    """Raise OtherKind for variants that only the decoder for CPUs computes."""
    epsilon = model.final_norm.epsilon
    expect(_is_plain(model.final_norm, epsilon), "norms of another kind")
    for layer in model.layers:
        expect(layer.output_norm is None and layer.down_norm is None, "norms of results")
        for norm in (layer.input_norm, layer.mlp_norm):
            expect(norm is not None and _is_plain(norm, epsilon), "norms of another kind")
        for norm in (layer.query_norm, layer.key_norm):
            expect(norm is None or _is_plain(norm, epsilon, model.head_size), "norms of heads of another kind")
        expect(layer.table == 0, "layers that do not rotate, or by several angles")
        expect(isinstance(layer.mlp, GatedMLP), "an MLP without gate")
    expect(model.activation in _GATES, "an activation that only the decoder for CPUs computes")
    expect(not model.rotary.by_neighbors, "neighbors that are rotated")
    expect(not model.parallel, "parallel layers")
    expect(model.factors == Factors(softcap=model.factors.softcap), "factors")


def _is_plain(norm: Norm, epsilon: float, width: int | None = None) -> bool:
    """Whether it is an RMSNorm with that epsilon."""
    same_width = width is None or len(norm.weight) == width
    return not norm.centers and norm.bias is None and norm.epsilon == epsilon and same_width


def _expect_table(model: DecoderModel[DenseLinear]) -> None:
    """Raise OtherKind unless the angles of a position are always the same, and those of both halves are equal."""
    few = torch.arange(_FEW_POSITIONS, device=model.final_norm.weight.device)
    cosines, sines = model.rotary.tables[0](few)
    half = model.rotary.size // 2
    expect(model.rotary.size <= model.head_size and model.rotary.size == 2 * half, "angles of another number")
    for table in (cosines, sines):
        expect(torch.equal(table[:, :half], table[:, half:]), "angles that differ between the halves of a head")
    for edge in model.rotary.edges:
        found = model.rotary.tables[0](torch.cat([few, few.new_tensor([edge])]))
        same = all(torch.equal(own, each[:-1]) for own, each in zip((cosines, sines), found, strict=True))
        expect(same, f"angles that change if a position exceeds {edge}")
    model.rotary.tables[0](few)  # some architectures keep the angles of the last call
