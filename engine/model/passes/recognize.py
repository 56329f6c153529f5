"""Recognizes a decoder of the common kind by the parts of its layers, and by what they hand to attention."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from orcastream.engine.model.decoder_model import (
    DecoderLayer,
    DecoderModel,
    Factors,
    GatedMLP,
    Linear,
    Mixture,
    PlainMLP,
)
from orcastream.engine.model.passes.base import plain
from orcastream.engine.model.passes.observe import Observed, observe
from orcastream.engine.model.passes.other_kind import OtherKind, expect
from orcastream.engine.model.passes.parts import only, parts_of, take
from orcastream.engine.model.passes.recognize_activation import activation_of
from orcastream.engine.model.passes.recognize_attention import PROJECTIONS, AttentionParts, recognize_attention
from orcastream.engine.model.passes.recognize_norm import recognize_norm
from orcastream.engine.model.passes.recognize_rotary import recognize_rotary
from orcastream.engine.native.elementwise import ACTIVATIONS

KNOWN_TYPES = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"}
"""Values of `model_type` that are of this kind with any configuration."""

_NORMS = (
    ("input_layernorm", None, "post_attention_layernorm", None),
    ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
    (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    ("input_layernorm", None, None, None),
)
"""Names of a layer's norms: before attention and of its result, before the MLP and of its result."""

_PARALLEL = _NORMS[-1]
"""The MLP reads what attention reads."""

_MLPS = (("mlp",), ("block_sparse_moe",))
_GATED = (("gate_proj", "up_proj", "down_proj"), ("gate_up_proj", "down_proj"))
_PLAIN = (("up_proj", "down_proj"), ("c_fc", "c_proj"), ("fc1", "fc2"))
_FINAL_NORMS = (("norm",), ("final_layernorm",))

_LOGITS_TOLERANCE = 2e-2
"""Largest relative distance of a token's logits, which a model may round to 16 bits after each operation."""

L = TypeVar("L", bound=Linear)


class _Names(NamedTuple):
    """Of the parts of a layer."""

    mlp: str
    norms: tuple[str | None, ...]


class LinearLayers(Protocol[L]):
    """Turns linear layers of a model into those of a DecoderModel. Raises OtherKind for modules of another kind."""

    def single(self, layer: Any) -> L:
        """Return the product that one layer computes."""

    def merged(self, *layers: Any) -> L:
        """Return one product that computes exactly these layers, in their order."""

    def mixture(self, mlp: Any) -> Mixture[L]:
        """Return the mixture that this MLP computes."""

    def shared(self, embedding: Any) -> L:
        """Return the product of whose weights an embedding returns rows."""


def recognize(model: PreTrainedModel, linears: LinearLayers[L]) -> DecoderModel[L]:
    """Return `model` as a DecoderModel with linear layers from `linears`. Raises OtherKind if it is none.

    A model may still compute something else with these parts.
    """
    expect(parts_of(model) == {"model", "lm_head"}, "modules beside the decoder and its head")
    name, inner = _decoder(model)
    parts = parts_of(inner)
    (final_norm,) = take(parts, _FINAL_NORMS, "a decoder")
    expect(parts - {"rotary_emb"} == {"embed_tokens", "layers"}, "modules beside layers")
    names = only({_names(layer) for layer in inner.layers}, "kinds of layers")
    observed = observe(model, [name for group in PROJECTIONS for name in group])
    calls = observed.calls
    expect([call.module for call in calls] == [layer.self_attn for layer in inner.layers], "layers that do not attend")
    attentions = [recognize_attention(call) for call in calls]
    sizes = only({attention.sizes for attention in attentions}, "sizes of heads")
    rotary, tables = recognize_rotary(inner, [attention.heads for attention in attentions])
    head = linears.single(model.lm_head)
    layers = tuple(
        _layer(f"{name}.layers.{index}", layer, names, attention, table, linears)
        for index, (layer, attention, table) in enumerate(zip(inner.layers, attentions, tables, strict=True))
    )
    mlps = [getattr(layer, names.mlp) for layer in inner.layers]
    num_embeddings = inner.embed_tokens.num_embeddings
    expect(num_embeddings >= max(head.n, inner.config.vocab_size), f"{num_embeddings} embeddings")
    return DecoderModel(
        embedding=_embedding(inner.embed_tokens, model.dtype, linears),
        layers=layers,
        final_norm=recognize_norm(getattr(inner, final_norm), head.k),
        head=head,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_size=sizes.head_size,
        intermediate_size=_intermediate_size(layers),
        dtype=model.dtype,
        scale=only({call.scale for call in calls}, "scales of attention"),
        activation=only({_activation(mlp) for mlp in mlps if not hasattr(mlp, "experts")} or {0}, "activations"),
        rotary=rotary,
        factors=_factors(model, inner, observed),
        parallel=names.norms == _PARALLEL,
    )


def _decoder(model: Any) -> tuple[str, Any]:
    """Return the decoder's name and module: a part of models that also see, of which text uses nothing else."""
    name = "model.language_model" if hasattr(model.model, "language_model") else "model"
    return name, model.get_submodule(name)


def _names(layer: nn.Module) -> _Names:
    parts = parts_of(layer)
    (mlp,) = take(parts, _MLPS, "layers")
    for norms in _NORMS:
        if parts - {"self_attn"} == set(norms) - {None}:
            return _Names(mlp, norms)
    raise OtherKind("layers of other parts")


def _layer(
    name: str,
    layer: Any,
    names: _Names,
    attention: AttentionParts,
    table: int | None,
    linears: LinearLayers[L],
) -> DecoderLayer[L]:
    output = linears.single(getattr(attention.module, attention.output))
    norms = [None if each is None else recognize_norm(getattr(layer, each), output.n) for each in names.norms]
    input_norm, output_norm, mlp_norm, down_norm = norms
    mlp, mlp_sites = _mlp(getattr(layer, names.mlp), linears)
    first, second = (f"{name}.self_attn.{each}" for each in (attention.projections[0], attention.output))
    third, fourth = (f"{name}.{names.mlp}.{each}" for each in mlp_sites)
    return DecoderLayer(
        projections=_product(linears, attention.module, attention.projections),
        output=output,
        mlp=mlp,
        input_norm=input_norm,
        output_norm=output_norm,
        mlp_norm=mlp_norm,
        down_norm=down_norm,
        query_norm=attention.query_norm,
        key_norm=attention.key_norm,
        sinks=attention.sinks,
        table=table,
        sites=(first, second, third, fourth),
    )


def _product(linears: LinearLayers[L], module: nn.Module, names: Sequence[str]) -> L:
    """Return the product that computes these layers side by side."""
    layers = [getattr(module, name) for name in names]
    return linears.single(*layers) if len(layers) == 1 else linears.merged(*layers)


def _mlp(mlp: Any, linears: LinearLayers[L]) -> tuple[GatedMLP[L] | PlainMLP[L] | Mixture[L], tuple[str, str]]:
    """Return an MLP, and the names of its first and its last linear layer."""
    parts = parts_of(mlp)
    if "experts" in parts:
        return linears.mixture(mlp), ("experts", "experts")
    *first, last = take(parts, (*_GATED, *_PLAIN), "an MLP")
    expect(not parts, "an MLP of other parts")
    kind = GatedMLP if (*first, last) in _GATED else PlainMLP
    return kind(_product(linears, mlp, first), linears.single(getattr(mlp, last))), (first[0], last)


def _intermediate_size(layers: Sequence[DecoderLayer[L]]) -> int:
    """Return that of MLPs; 0 if all layers are mixtures."""
    kinds = {(type(layer.mlp), layer.mlp.down.k) for layer in layers if not isinstance(layer.mlp, Mixture)}
    expect(len(kinds) <= 1, "MLPs of several sizes")
    return max((size for _, size in kinds), default=0)


def _activation(mlp: nn.Module) -> int:
    """Return the number of an MLP's activation."""
    found = activation_of(mlp)
    if found is None:
        raise OtherKind(f"an MLP with another activation: {type(mlp).__name__}")
    return ACTIVATIONS[found]


def _embedding(embedding: Any, dtype: torch.dtype, linears: LinearLayers[L]) -> torch.Tensor | L:
    expect(plain(embedding), "embeddings with hooks")
    if not isinstance(embedding, nn.Embedding):
        return linears.shared(embedding)
    weight: torch.Tensor = embedding.weight.detach()
    expect(weight.dtype is dtype and weight.is_contiguous(), "embeddings in another format")
    expect(embedding.max_norm is None, "embeddings that are scaled")
    return weight


def _factors(model: Any, inner: Any, observed: Observed) -> Factors:
    """Return the factors by the names that transformers gives them."""
    config = inner.config
    embedding = float(getattr(inner, "embedding_multiplier", 1.0))
    own = getattr(inner.embed_tokens, "embed_scale", getattr(inner.embed_tokens, "scale", None))
    if own is not None:
        embedding *= float(torch.as_tensor(own).to(model.dtype))
    residual = only({float(getattr(layer, "residual_multiplier", 1.0)) for layer in inner.layers}, "residual factors")
    logit = float(getattr(model, "logit_scale", 1.0)) / float(getattr(config, "logits_scaling", 1.0))
    cap = float(getattr(config, "final_logit_softcapping", None) or 0.0)
    expected = observed.scores.float() * logit
    if cap:
        expected = cap * torch.tanh(expected / cap)
    distances = (observed.logits.float() - expected).norm(dim=-1)
    expect(bool((distances <= _LOGITS_TOLERANCE * expected.norm(dim=-1)).all()), "logits of another kind")
    return Factors(embedding, residual, logit, cap, only({call.softcap for call in observed.calls}, "bounds of scores"))
