"""The pass that recognizes a whole decoder of the common kind by the parts of its layers."""

import logging
import sys
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from orcastream.engine.model.decoder_model import ATTRIBUTE, DecoderLayer, DecoderModel
from orcastream.engine.model.passes.base import Pass, register
from orcastream.engine.model.passes.merge_projections import MergedLinearLayer
from orcastream.engine.model.passes.pack_linears import PackedLinearLayer
from orcastream.engine.model.tiny_copy import thresholds
from orcastream.engine.native.linear import PackedLinear

_log = logging.getLogger(__name__)

KNOWN_TYPES = {"llama", "mistral", "qwen2", "qwen3"}
"""Values of `model_type` that are of this kind with any configuration."""

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_ACTIVATIONS = {"silu": 0, "swish": 0, "gelu_pytorch_tanh": 1}


class _OtherKind(Exception):
    """The model is not of that kind; the message says what differs."""


@register("compile_decoder")
class CompileDecoder(Pass):
    """One call computes all layers of Llama, Mistral, Qwen and similar models.

    The self-check, which computes with the DecoderModel that this pass attaches, detects parts that only look alike.
    """

    def apply(self, model: PreTrainedModel) -> int:
        """Attach a DecoderModel to the model and return 1; log and return 0 if it is of another kind."""
        try:
            setattr(model, ATTRIBUTE, _recognize(model))
        except (_OtherKind, AttributeError) as error:
            _log.info("the decoder is computed module by module: %s", error)
            return 0
        return 1


def _recognize(model: PreTrainedModel) -> DecoderModel:
    config, inner = model.config, model.model
    _expect(set(dict(model.named_children())) == {"model", "lm_head"}, "modules beside the decoder and its head")
    _expect(
        set(dict(inner.named_children())) == {"embed_tokens", "layers", "norm", "rotary_emb"}, "modules beside layers"
    )
    layers = tuple(_layer(layer) for layer in inner.layers)
    attention = inner.layers[0].self_attn
    head_size = attention.head_dim
    num_heads = layers[0].output.k // head_size
    num_kv_heads = (layers[0].projections.n // head_size - num_heads) // 2
    final_norm, epsilon = _norm(inner.norm)
    _expect(config.hidden_act in _ACTIVATIONS, f"hidden_act={config.hidden_act}")
    _expect(len({layer.self_attn.scaling for layer in inner.layers}) == 1, "layers of several scales")
    rotary = _rotary(inner.rotary_emb)
    rotary_size = rotary(torch.zeros(1, dtype=torch.long))[0].shape[-1]
    return DecoderModel(
        layers=layers,
        final_norm=final_norm,
        head=_packed(model.lm_head),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        rotary_size=rotary_size,
        intermediate_size=layers[0].down.k,
        dtype=model.dtype,
        epsilon=epsilon,
        scale=attention.scaling,
        activation=_ACTIVATIONS[config.hidden_act],
        embed=inner.embed_tokens,
        rotary=rotary,
        edges=_edges(config),
    )


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _OtherKind(otherwise)


def _layer(layer: nn.Module) -> DecoderLayer:
    attention: Any = layer.self_attn
    children = set(dict(attention.named_children()))
    _expect(set(dict(layer.named_children())) == _LAYER, "layers of other parts")
    _expect(children in (_ATTENTION, _ATTENTION | _HEAD_NORMS), "attention of other parts")
    _expect(set(dict(layer.mlp.named_children())) == _MLP, "an MLP of other parts")  # type: ignore[union-attr]
    mlp: Any = layer.mlp
    head_norms = [
        _norm(norm, attention.head_dim)[0] if norm is not None else None
        for norm in (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    ]
    return DecoderLayer(
        projections=_merged(attention.q_proj, attention.k_proj, attention.v_proj),
        output=_packed(attention.o_proj),
        gate_up=_merged(mlp.gate_proj, mlp.up_proj),
        down=_packed(mlp.down_proj),
        sites=(
            attention.q_proj.merged.layers[0],
            attention.o_proj.layers[0],
            mlp.gate_proj.merged.layers[0],
            mlp.down_proj.layers[0],
        ),
        input_norm=_norm(layer.input_layernorm)[0],
        post_norm=_norm(layer.post_attention_layernorm)[0],
        query_norm=head_norms[0],
        key_norm=head_norms[1],
    )


def _packed(layer: Any) -> PackedLinear:
    _expect(isinstance(layer, PackedLinearLayer), f"{type(layer).__name__} is not packed")
    packed: PackedLinear = layer.packed
    return packed


def _merged(*layers: Any) -> PackedLinear:
    """Return the packed product that computes exactly these layers, in their order."""
    _expect(all(isinstance(layer, MergedLinearLayer) for layer in layers), "projections are not merged")
    merged = layers[0].merged
    places = [(layer.merged is merged, layer.index) for layer in layers]
    _expect(places == [(True, index) for index in range(len(layers))], "projections are merged otherwise")
    _expect(len(merged.widths) == len(layers), "projections are merged with others")
    packed: PackedLinear = merged.packed
    return packed


def _norm(norm: Any, size: int | None = None) -> tuple[torch.Tensor, float]:
    """Return the factors of an RMSNorm in float32, and its epsilon; some architectures store factors minus one."""
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(epsilon, float):
        raise _OtherKind(f"{type(norm).__name__} has no epsilon")
    own = norm.weight.detach().float()
    _expect(size is None or own.shape == (size,), f"{type(norm).__name__} of {tuple(own.shape)} instead of one head")
    x = torch.randn(4, len(own), generator=torch.Generator().manual_seed(0)).to(norm.weight.dtype)
    normalized = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon)
    with torch.inference_mode():
        expected = norm(x).float()
    tolerance = 1e-5 if x.dtype is torch.float32 else 2e-2
    for factors in (own, 1 + own):
        if torch.allclose(normalized * factors, expected, rtol=tolerance, atol=tolerance):
            return factors.contiguous(), epsilon
    raise _OtherKind(f"{type(norm).__name__} is no RMSNorm")


def _edges(config: Any) -> tuple[int, ...]:
    """Return the positions where angles may change; it does no harm if a table of angles ends at one needlessly."""
    own = getattr(config.get_text_config(), "max_position_embeddings", None)
    edges = {threshold.tokens for threshold in thresholds(config, sys.maxsize)}
    return tuple(edges if own is None else edges | {own})


def _rotary(rotary: Any) -> Any:
    """Return a function from positions `[num_tokens]` to cosines and sines `[num_tokens, rotary_size]`."""
    _expect(hasattr(rotary, "inv_freq"), "positions of another kind")

    def angles(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode():
            cosines, sines = rotary(torch.empty(0, dtype=torch.float32), positions.unsqueeze(0))
        return cosines[0], sines[0]

    return angles
