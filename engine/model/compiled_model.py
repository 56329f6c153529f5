"""A decoder's weights and shape as the native call takes them."""

import ctypes

import torch

from orcastream.engine.model.compiled_mixture import CompiledMixture
from orcastream.engine.model.decoder_model import DecoderLayer, DecoderModel, GatedMLP, Mixture, Norm, PlainMLP
from orcastream.engine.native import decoder as native
from orcastream.engine.native.formats import FORMATS
from orcastream.engine.native.linear import PackedLinear


class CompiledModel:
    """The structures of native/src/decoder.h for a model, and all memory to which they refer."""

    def __init__(self, model: DecoderModel[PackedLinear]) -> None:
        self._model = model
        self._norms: list[native.Norm] = []
        self._mixtures: list[CompiledMixture] = []
        self._layers = (native.DecoderLayer * len(model.layers))(*map(self._layer, model.layers))
        self.is_gated = not any(isinstance(layer.mlp, PlainMLP) for layer in model.layers)
        embedding, factors = model.embedding, model.factors
        self.structure = native.Decoder(
            layers=ctypes.addressof(self._layers),
            embedding=embedding.data_ptr() if isinstance(embedding, torch.Tensor) else None,
            shared=embedding.address if isinstance(embedding, PackedLinear) else None,
            final_norm=self._norm(model.final_norm),
            head=model.head.address,
            num_layers=len(model.layers),
            hidden_size=model.hidden_size,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_size=model.head_size,
            rotary_size=model.rotary.size,
            intermediate_size=model.intermediate_size,
            embedding_factor=factors.embedding,
            residual_factor=factors.residual,
            logit_factor=factors.logit,
            logit_cap=factors.logit_cap,
            is_gated=self.is_gated,
            is_parallel=model.parallel,
            by_neighbors=model.rotary.by_neighbors,
            activation=model.activation,
            format=FORMATS[model.dtype],
        )

    @property
    def has_mixtures(self) -> bool:
        """Whether any layer has a mixture of experts."""
        return bool(self._mixtures)

    def widths(self) -> dict[str, int]:
        """Return the numbers per row of each buffer of working memory."""
        model = self._model
        return {
            "hidden": model.hidden_size,
            "normed": model.hidden_size,
            "projected": (model.num_heads + 2 * model.num_kv_heads) * model.head_size,
            "attended": model.num_heads * model.head_size,
            "gate_up": (1 + self.is_gated) * model.intermediate_size,
            "gated": model.intermediate_size,
            "change": model.hidden_size,
        }

    def _layer(self, layer: DecoderLayer[PackedLinear]) -> native.DecoderLayer:
        mlp = layer.mlp
        first = mlp.gate_up if isinstance(mlp, GatedMLP) else mlp.up if isinstance(mlp, PlainMLP) else None
        return native.DecoderLayer(
            projections=layer.projections.address,
            output=layer.output.address,
            gate_up=None if first is None else first.address,
            down=None if isinstance(mlp, Mixture) else mlp.down.address,
            mixture=self._mixture(mlp) if isinstance(mlp, Mixture) else None,
            **{name: self._norm(getattr(layer, name)) for name in native.NORMS},
            sinks=None if layer.sinks is None else layer.sinks.data_ptr(),
            table=-1 if layer.table is None else layer.table,
        )

    def _mixture(self, mixture: Mixture[PackedLinear]) -> int:
        self._mixtures.append(CompiledMixture(mixture, self._model.dtype))
        return self._mixtures[-1].address

    def _norm(self, norm: Norm | None) -> int | None:
        if norm is None:
            return None
        bias = None if norm.bias is None else norm.bias.data_ptr()
        self._norms.append(native.Norm(norm.weight.data_ptr(), bias, len(norm.weight), norm.epsilon, norm.centers))
        return ctypes.addressof(self._norms[-1])
