"""Recognizes a decoder of the common kind by the parts of its layers, and by what they hand to attention."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

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
    Norm,
    PlainMLP,
)
from orcastream.engine.model.passes.base import plain
from orcastream.engine.model.passes.observe import Attended, observe
from orcastream.engine.model.passes.other_kind import OtherKind, expect
from orcastream.engine.model.passes.recognize_norm import recognize_norm
from orcastream.engine.model.passes.recognize_rotary import Heads, recognize_rotary

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

_PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("qkv_proj",))
_OUTPUTS = (("o_proj",), ("dense",))
_HEAD_NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ())
_GATED = (("gate_proj", "up_proj", "down_proj"), ("gate_up_proj", "down_proj"))
_PLAIN = (("up_proj", "down_proj"), ("c_fc", "c_proj"), ("fc1", "fc2"))
_MIXTURE = ("gate", "experts")
_FINAL_NORMS = (("norm",), ("final_layernorm",))

_ACTIVATION_NAMES = ("act_fn", "activation_fn", "act")
_ACTIVATIONS: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {
    0: nn.functional.silu,
    1: lambda x: nn.functional.gelu(x, approximate="tanh"),
    2: nn.functional.gelu,
    3: nn.functional.relu,
    4: lambda x: nn.functional.relu(x).square(),
}
"""Those of native/src/activation.h."""

L = TypeVar("L", bound=Linear)
T = TypeVar("T")
Sizes = tuple[int, int, int]
"""Numbers of queries and keys per token, and the size of each."""


class LinearLayers(Protocol[L]):
    """Turns linear layers of a model into those of a DecoderModel. Raises OtherKind for modules of another kind."""

    def single(self, layer: Any) -> L:
        """Return the product that one layer computes."""

    def merged(self, *layers: Any) -> L:
        """Return one product that computes exactly these layers, in their order."""

    def mixture(self, router: Any, experts: Any) -> Mixture[L]:
        """Return the mixture that these modules compute."""

    def shared(self, embedding: Any) -> L:
        """Return the product of whose weights an embedding returns rows."""


def recognize(model: PreTrainedModel, linears: LinearLayers[L]) -> DecoderModel[L]:
    """Return `model` as a DecoderModel with linear layers from `linears`. Raises OtherKind if it is none.

    A model may still compute something else with these parts.
    """
    config, inner = model.config, model.model
    expect(_parts(model) == {"model", "lm_head"}, "modules beside the decoder and its head")
    parts = _parts(inner)
    (final_norm,) = _take(parts, _FINAL_NORMS, "a decoder")
    expect(parts - {"rotary_emb"} == {"embed_tokens", "layers"}, "modules beside layers")
    names = _only({_norm_names(layer) for layer in inner.layers}, "kinds of layers")
    calls = observe(model, [name for group in _PROJECTIONS for name in group])
    expect([call.module for call in calls] == [layer.self_attn for layer in inner.layers], "layers that do not attend")
    num_heads, num_kv_heads, head_size = sizes = _only({_sizes(call) for call in calls}, "sizes of heads")
    head_norms = [_head_norms(call, sizes) for call in calls]
    heads = [_heads(call, norms, sizes) for call, norms in zip(calls, head_norms, strict=True)]
    rotary, tables = recognize_rotary(model, heads)
    head = linears.single(model.lm_head)
    layers = tuple(
        _layer(f"model.layers.{index}.", layer, names, head.k, call, norms, table, linears)
        for index, (layer, call, norms, table) in enumerate(zip(inner.layers, calls, head_norms, tables, strict=True))
    )
    num_embeddings = inner.embed_tokens.num_embeddings
    expect(num_embeddings >= max(head.n, config.vocab_size), f"{num_embeddings} embeddings")
    return DecoderModel(
        embedding=_embedding(inner.embed_tokens, model.dtype, linears),
        layers=layers,
        final_norm=recognize_norm(getattr(inner, final_norm), head.k),
        head=head,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        intermediate_size=_intermediate_size(layers),
        dtype=model.dtype,
        scale=_only({call.scale for call in calls}, "scales of attention"),
        activation=_only(
            {_activation(layer.mlp) for layer in inner.layers if not hasattr(layer.mlp, "experts")} or {0},
            "activations",
        ),
        rotary=rotary,
        factors=_factors(model, calls),
        parallel=names == _PARALLEL,
    )


def _parts(module: nn.Module) -> set[str]:
    """Return the names of children that compute something, without activations."""
    idle = (nn.Dropout, nn.Identity)
    return {
        name for name, child in module.named_children() if not isinstance(child, idle) and name not in _ACTIVATION_NAMES
    }


def _take(parts: set[str], kinds: Sequence[tuple[str, ...]], what: str) -> tuple[str, ...]:
    """Remove the first kind, of which all names are in `parts`, from them, and return it."""
    for names in kinds:
        if parts.issuperset(names):
            parts.difference_update(names)
            return names
    raise OtherKind(f"{what} of other parts")


def _only(values: Collection[T], what: str) -> T:
    """Return the only value."""
    expect(len(values) == 1, f"several {what}")
    return next(iter(values))


def _norm_names(layer: nn.Module) -> tuple[str | None, ...]:
    parts = _parts(layer)
    expect({"self_attn", "mlp"} <= parts, "layers of other parts")
    for names in _NORMS:
        if parts - {"self_attn", "mlp"} == set(names) - {None}:
            return names
    raise OtherKind("layers of other parts")


def _sizes(call: Attended) -> Sizes:
    (_, num_heads, head_size), (_, num_kv_heads, key_size) = call.query.shape, call.key.shape
    expect(head_size == key_size == call.value_size, "values of another size than keys")
    return num_heads, num_kv_heads, head_size


def _head_norms(call: Attended, sizes: Sizes) -> tuple[Norm | None, Norm | None]:
    """Return the norms of queries and keys: of each head, or of all heads together."""
    parts = _parts(call.module)
    for kinds in (_PROJECTIONS, _OUTPUTS):
        _take(parts, kinds, "attention")
    names = _take(parts, _HEAD_NORMS, "attention")
    expect(not parts, "attention of other parts")
    if not names:
        return None, None
    *counts, head_size = sizes
    queries, keys = (getattr(call.module, name) for name in names)
    if queries.weight.numel() == head_size:
        return recognize_norm(queries, head_size), recognize_norm(keys, head_size)
    return recognize_norm(queries, counts[0] * head_size), recognize_norm(keys, counts[1] * head_size)


def _heads(call: Attended, norms: tuple[Norm | None, Norm | None], sizes: Sizes) -> list[Heads]:
    """Return queries and keys of a layer before and after they are rotated."""
    *counts, head_size = sizes
    widths = [count * head_size for count in (*counts, counts[1])]
    outputs = torch.cat([call.outputs[name] for name in _projection_names(call.module)], dim=-1)
    expect(outputs.shape[-1] == sum(widths), "projections of other widths")
    found = []
    for before, after, norm in zip(torch.split(outputs, widths, dim=-1), (call.query, call.key), norms, strict=False):
        by_norm = before if norm is None else norm(before.view(len(before), -1, len(norm.weight))).flatten(-2)
        found.append(Heads(by_norm.view(len(before), -1, head_size), after))
    return found


def _projection_names(attention: nn.Module) -> tuple[str, ...]:
    return _take(_parts(attention), _PROJECTIONS, "attention")


def _layer(
    name: str,
    layer: Any,
    norm_names: tuple[str | None, ...],
    width: int,
    call: Attended,
    head_norms: tuple[Norm | None, Norm | None],
    table: int | None,
    linears: LinearLayers[L],
) -> DecoderLayer[L]:
    attention = layer.self_attn
    projections = _projection_names(attention)
    (output,) = _take(_parts(attention), _OUTPUTS, "attention")
    norms = [None if each is None else recognize_norm(getattr(layer, each), width) for each in norm_names]
    mlp, (first, last) = _mlp(layer.mlp, linears)
    return DecoderLayer(
        projections=_product(linears, attention, projections),
        output=linears.single(getattr(attention, output)),
        mlp=mlp,
        input_norm=norms[0],
        output_norm=norms[1],
        mlp_norm=norms[2],
        down_norm=norms[3],
        query_norm=head_norms[0],
        key_norm=head_norms[1],
        sinks=None if call.sinks is None else call.sinks.detach().float().contiguous(),
        table=table,
        sites=(
            f"{name}self_attn.{projections[0]}",
            f"{name}self_attn.{output}",
            f"{name}mlp.{first}",
            f"{name}mlp.{last}",
        ),
    )


def _product(linears: LinearLayers[L], module: nn.Module, names: Sequence[str]) -> L:
    """Return the product that computes these layers side by side."""
    layers = [getattr(module, name) for name in names]
    return linears.single(*layers) if len(layers) == 1 else linears.merged(*layers)


def _mlp(mlp: Any, linears: LinearLayers[L]) -> tuple[GatedMLP[L] | PlainMLP[L] | Mixture[L], tuple[str, str]]:
    """Return an MLP, and the names of its first and its last linear layer."""
    parts = _parts(mlp)
    if parts == set(_MIXTURE):
        return linears.mixture(mlp.gate, mlp.experts), _MIXTURE
    *first, last = _take(parts, (*_GATED, *_PLAIN), "an MLP")
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
    own = next((getattr(mlp, name) for name in _ACTIVATION_NAMES if hasattr(mlp, name)), None)
    if own is None:
        raise OtherKind("an MLP without activation")
    x = torch.linspace(-8, 8, 101)
    for number, activation in _ACTIVATIONS.items():
        if torch.allclose(own(x), activation(x), rtol=1e-5, atol=1e-6):
            return number
    raise OtherKind(f"the activation {type(own).__name__}")


def _embedding(embedding: Any, dtype: torch.dtype, linears: LinearLayers[L]) -> torch.Tensor | L:
    expect(plain(embedding), "embeddings with hooks")
    if not isinstance(embedding, nn.Embedding):
        return linears.shared(embedding)
    weight: torch.Tensor = embedding.weight.detach()
    expect(weight.dtype is dtype and weight.is_contiguous(), "embeddings in another format")
    expect(embedding.max_norm is None, "embeddings that are scaled")
    return weight


def _factors(model: Any, calls: Sequence[Attended]) -> Factors:
    """Return the factors by the names that transformers gives them."""
    config, inner = model.config, model.model
    embedding = float(getattr(inner, "embedding_multiplier", 1.0))
    own = getattr(inner.embed_tokens, "embed_scale", getattr(inner.embed_tokens, "scale", None))
    if own is not None:
        embedding *= float(torch.as_tensor(own).to(model.dtype))
    residual = _only({float(getattr(layer, "residual_multiplier", 1.0)) for layer in inner.layers}, "residual factors")
    logit = float(getattr(model, "logit_scale", 1.0)) / float(getattr(config, "logits_scaling", 1.0))
    cap = float(getattr(config, "final_logit_softcapping", None) or 0.0)
    return Factors(embedding, residual, logit, cap, _only({call.softcap for call in calls}, "bounds of scores"))
