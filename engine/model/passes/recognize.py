"""Recognizes a decoder of the common kind by the parts of its layers."""

import sys
from typing import Any, Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from orcastream.engine.model.decoder_model import DecoderLayer, DecoderModel, GatedMLP, Linear, Mixture
from orcastream.engine.model.passes.base import plain
from orcastream.engine.model.tiny_copy import thresholds

KNOWN_TYPES = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"}
"""Values of `model_type` that are of this kind with any configuration."""

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_MIXTURE = {"gate", "experts"}
_SITES = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
_ACTIVATIONS = {"silu": 0, "swish": 0, "gelu_pytorch_tanh": 1}

L = TypeVar("L", bound=Linear)


class OtherKind(Exception):
    """The model is not of that kind; the message says what differs."""


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

    Only the parts are looked at: a model may still compute something else with them.
    """
    config, inner = model.config, model.model
    expect(set(dict(model.named_children())) == {"model", "lm_head"}, "modules beside the decoder and its head")
    expect(
        set(dict(inner.named_children())) == {"embed_tokens", "layers", "norm", "rotary_emb"}, "modules beside layers"
    )
    for layer in inner.layers:
        _expect_parts(layer)
    expect(config.hidden_act in _ACTIVATIONS, f"hidden_act={config.hidden_act}")
    expect(len({layer.self_attn.scaling for layer in inner.layers}) == 1, "layers of several scales")
    layers = tuple(_layer(layer, f"model.layers.{index}.", linears) for index, layer in enumerate(inner.layers))
    attention = inner.layers[0].self_attn
    head_size = attention.head_dim
    num_heads = layers[0].output.k // head_size
    num_kv_heads = (layers[0].projections.n // head_size - num_heads) // 2
    final_norm, epsilon = _norm(inner.norm)
    head = linears.single(model.lm_head)
    num_embeddings = inner.embed_tokens.num_embeddings
    expect(num_embeddings >= max(head.n, config.vocab_size), f"{num_embeddings} embeddings")
    rotary = _rotary(inner.rotary_emb)
    rotary_size = rotary(torch.zeros(1, dtype=torch.long, device=model.device))[0].shape[-1]
    return DecoderModel(
        embedding=_embedding(inner.embed_tokens, model.dtype, linears),
        layers=layers,
        final_norm=final_norm,
        head=head,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        rotary_size=rotary_size,
        intermediate_size=_intermediate_size(layers),
        dtype=model.dtype,
        epsilon=epsilon,
        scale=attention.scaling,
        activation=_ACTIVATIONS[config.hidden_act],
        rotary=rotary,
        edges=_edges(config),
    )


def expect(holds: bool, otherwise: str) -> None:
    """Raise OtherKind with the message `otherwise` unless the condition holds."""
    if not holds:
        raise OtherKind(otherwise)


def _embedding(embedding: Any, dtype: torch.dtype, linears: LinearLayers[L]) -> torch.Tensor | L:
    expect(plain(embedding), "embeddings with hooks")
    if type(embedding) is not torch.nn.Embedding:
        return linears.shared(embedding)
    weight: torch.Tensor = embedding.weight.detach()
    expect(weight.dtype is dtype and weight.is_contiguous(), "embeddings in another format")
    expect(embedding.max_norm is None, "embeddings that are scaled")
    return weight


def _expect_parts(layer: Any) -> None:
    attention = set(dict(layer.self_attn.named_children()))
    expect(set(dict(layer.named_children())) == _LAYER, "layers of other parts")
    expect(attention in (_ATTENTION, _ATTENTION | _HEAD_NORMS), "attention of other parts")
    expect(set(dict(layer.mlp.named_children())) in (_MLP, _MIXTURE), "an MLP of other parts")


def _layer(layer: Any, name: str, linears: LinearLayers[L]) -> DecoderLayer[L]:
    attention, mlp = layer.self_attn, layer.mlp
    head_norms = [
        _norm(norm, attention.head_dim)[0] if norm is not None else None
        for norm in (getattr(attention, each, None) for each in ("q_norm", "k_norm"))
    ]
    first, second, third, fourth = (name + site for site in _SITES)
    return DecoderLayer(
        projections=linears.merged(attention.q_proj, attention.k_proj, attention.v_proj),
        output=linears.single(attention.o_proj),
        mlp=_mlp(mlp, linears),
        sites=(first, second, third, fourth),
        input_norm=_norm(layer.input_layernorm)[0],
        post_norm=_norm(layer.post_attention_layernorm)[0],
        query_norm=head_norms[0],
        key_norm=head_norms[1],
    )


def _mlp(mlp: Any, linears: LinearLayers[L]) -> GatedMLP[L] | Mixture[L]:
    if hasattr(mlp, "experts"):
        return linears.mixture(mlp.gate, mlp.experts)
    return GatedMLP(linears.merged(mlp.gate_proj, mlp.up_proj), linears.single(mlp.down_proj))


def _intermediate_size(layers: tuple[DecoderLayer[L], ...]) -> int:
    """Return that of gated MLPs; 0 if all layers are mixtures."""
    sizes = {layer.mlp.down.k for layer in layers if isinstance(layer.mlp, GatedMLP)}
    expect(len(sizes) <= 1, "MLPs of several sizes")
    return max(sizes, default=0)


def _norm(norm: Any, size: int | None = None) -> tuple[torch.Tensor, float]:
    """Return the factors of an RMSNorm in float32, and its epsilon; some architectures store factors minus one."""
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(epsilon, float):
        raise OtherKind(f"{type(norm).__name__} has no epsilon")
    own = norm.weight.detach().float()
    expect(size is None or own.shape == (size,), f"{type(norm).__name__} of {tuple(own.shape)} instead of one head")
    x = torch.randn(4, len(own), generator=torch.Generator().manual_seed(0)).to(norm.weight)
    normalized = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon)
    with torch.inference_mode():
        expected = norm(x).float()
    tolerance = 1e-5 if x.dtype is torch.float32 else 2e-2
    for factors in (own, 1 + own):
        if torch.allclose(normalized * factors, expected, rtol=tolerance, atol=tolerance):
            return factors.contiguous(), epsilon
    raise OtherKind(f"{type(norm).__name__} is no RMSNorm")


def _edges(config: Any) -> tuple[int, ...]:
    """Return the positions where angles may change; it does no harm if a table of angles ends at one needlessly."""
    own = getattr(config.get_text_config(), "max_position_embeddings", None)
    edges = {threshold.tokens for threshold in thresholds(config, sys.maxsize)}
    return tuple(edges if own is None else edges | {own})


def _rotary(rotary: Any) -> Any:
    """Return a function from positions `[num_tokens]` to cosines and sines `[num_tokens, rotary_size]`."""
    expect(hasattr(rotary, "inv_freq"), "positions of another kind")

    def angles(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode():
            cosines, sines = rotary(
                torch.empty(0, dtype=torch.float32, device=positions.device), positions.unsqueeze(0)
            )
        return cosines[0], sines[0]

    return angles
