"""The pass that computes a whole decoder of the common kind in few kernels on a GPU."""

import logging
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from orcastream.engine.model.decoder_model import ATTRIBUTE, DecoderModel, Mixture
from orcastream.engine.model.dense_linear import DenseLinear
from orcastream.engine.model.passes.base import Pass, plain, register
from orcastream.engine.model.passes.recognize import OtherKind, expect, recognize

_log = logging.getLogger(__name__)

_FEW_POSITIONS = 4


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

    def mixture(self, router: Any, experts: Any) -> Mixture[DenseLinear]:
        raise OtherKind(f"a mixture of experts: {type(experts).__name__}")

    def shared(self, embedding: Any) -> DenseLinear:
        raise OtherKind(f"embeddings of another kind: {type(embedding).__name__}")

    def _expect_plain(self, layer: Any) -> None:
        expect(type(layer) is nn.Linear and plain(layer), f"{type(layer).__name__} is no plain linear layer")
        expect((layer.weight.device, layer.weight.dtype) == (self._device, self._dtype), "weights of several kinds")


def _expect_table(model: DecoderModel[DenseLinear]) -> None:
    """Raise OtherKind unless the angles of a position are always the same, and those of both halves are equal."""
    few = torch.arange(_FEW_POSITIONS, device=model.final_norm.device)
    cosines, sines = model.rotary(few)
    half = model.rotary_size // 2
    expect(model.rotary_size <= model.head_size and model.rotary_size == 2 * half, "angles of another number")
    for table in (cosines, sines):
        expect(torch.equal(table[:, :half], table[:, half:]), "angles that differ between the halves of a head")
    for edge in model.edges:
        found = model.rotary(torch.cat([few, few.new_tensor([edge])]))
        same = all(torch.equal(own, each[:-1]) for own, each in zip((cosines, sines), found, strict=True))
        expect(same, f"angles that change if a position exceeds {edge}")
    model.rotary(few)  # some architectures keep the angles of the last call
