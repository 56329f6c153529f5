"""Recognizes the parts of attention modules."""

from dataclasses import dataclass
from typing import Any

import torch

from orcastream.engine.model.decoder_model import Norm
from orcastream.engine.model.passes.observe import Attended
from orcastream.engine.model.passes.other_kind import expect
from orcastream.engine.model.passes.parts import parts_of, take
from orcastream.engine.model.passes.recognize_norm import recognize_norm
from orcastream.engine.model.passes.recognize_rotary import Heads

PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("qkv_proj",))
_OUTPUTS = (("o_proj",), ("dense",))
_SINKS = {"sinks"}
_NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ())


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Queries and keys per token, and the size of each."""

    num_heads: int
    num_kv_heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class AttentionParts:
    """The parts of an attention module, and `heads`: the queries and keys of an observed call."""

    module: Any
    projections: tuple[str, ...]
    output: str
    query_norm: Norm | None
    key_norm: Norm | None
    sinks: torch.Tensor | None
    sizes: HeadSizes
    heads: tuple[Heads, Heads]


def recognize_attention(call: Attended) -> AttentionParts:
    """Return the parts of the module that made this call. Raises OtherKind if it has others."""
    parts = parts_of(call.module)
    projections, (output,), norms = (take(parts, kinds, "attention") for kinds in (PROJECTIONS, _OUTPUTS, _NORMS))
    expect(not parts, "attention of other parts")
    own = {name for name, _ in call.module.named_parameters(recurse=False)}
    expect(own <= _SINKS, "attention with weights of its own")
    sizes = _sizes(call)
    widths = [count * sizes.head_size for count in (sizes.num_heads, sizes.num_kv_heads, sizes.num_kv_heads)]
    query_norm, key_norm = (
        (_norm(getattr(call.module, name), sizes.head_size, width) for name, width in zip(norms, widths, strict=False))
        if norms
        else (None, None)
    )
    outputs = torch.cat([call.outputs[name] for name in projections], dim=-1)
    expect(outputs.shape[-1] == sum(widths), "projections of other widths")
    queries, keys, values = torch.split(outputs, widths, dim=-1)
    expect(torch.equal(values, call.value.flatten(1)), "values of another kind")
    heads = (
        Heads(_heads(queries, query_norm, sizes.head_size), call.query),
        Heads(_heads(keys, key_norm, sizes.head_size), call.key),
    )
    sinks = None if call.sinks is None else call.sinks.detach().float().contiguous()
    return AttentionParts(call.module, projections, output, query_norm, key_norm, sinks, sizes, heads)


def _sizes(call: Attended) -> HeadSizes:
    (_, num_heads, head_size), (_, num_kv_heads, key_size) = call.query.shape, call.key.shape
    expect(head_size == key_size == call.value.shape[-1], "values of another size than keys")
    return HeadSizes(num_heads, num_kv_heads, head_size)


def _norm(norm: Any, head_size: int, width: int) -> Norm:
    """Return the norm of one head, or of all together."""
    weight = getattr(norm, "weight", None)
    return recognize_norm(norm, head_size if weight is None or weight.numel() == head_size else width)


def _heads(rows: torch.Tensor, norm: Norm | None, head_size: int) -> torch.Tensor:
    """Return the heads `[tokens, heads, size]` of projected rows."""
    if norm is not None:
        rows = norm(rows.view(len(rows), -1, len(norm.weight))).flatten(1)
    return rows.view(len(rows), -1, head_size)
