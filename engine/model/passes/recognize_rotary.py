"""Recognizes how a model rotates queries and keys, by what attention gets."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from orcastream.engine.model.decoder_model import Rotary
from orcastream.engine.model.passes.observe import POSITIONS
from orcastream.engine.model.passes.other_kind import OtherKind, expect
from orcastream.engine.model.tiny_copy import thresholds

_TOLERANCE = {torch.float32: 1e-4}
_ROUNDED_TOLERANCE = 3e-2

Angles = tuple[torch.Tensor, torch.Tensor]
Table = Callable[[torch.Tensor], Angles]


@dataclass(frozen=True, slots=True)
class Heads:
    """Queries or keys `[tokens, heads, size]` of a layer, before and after they are rotated."""

    before: torch.Tensor
    after: torch.Tensor


def recognize_rotary(decoder: Any, layers: Sequence[Sequence[Heads]]) -> tuple[Rotary, list[int | None]]:
    """Return a decoder's angles, and the index of each layer's table, None for layers that do not rotate.

    `layers` has queries and keys of each layer at the observed positions. Raises OtherKind if they are rotated
    otherwise.
    """
    kinds, tables = _own_tables(decoder)
    positions = torch.tensor(POSITIONS, device=decoder.device)
    moving = [index for index, heads in enumerate(layers) if not _are_near(heads, None, False)]
    expect(bool(tables) or not moving, "positions of another kind")
    for form, by_neighbors in _FORMS:
        angles = [form(table(positions)) for table in tables]
        expect(len({each[0].shape for each in angles}) <= 1, "layers that rotate several numbers of values")
        if all(_are_near(layers[index], angles[kinds[index]], by_neighbors) for index in moving):
            own = tuple(_formed(form, table) for table in tables)
            rotary = Rotary(own, angles[0][0].shape[-1] if angles else 0, by_neighbors, _edges(decoder.config))
            return rotary, [kind if index in moving else None for index, kind in enumerate(kinds)]
    raise OtherKind("positions of another kind")


def rotated(x: torch.Tensor, angles: Angles, by_neighbors: bool) -> torch.Tensor:
    """Return x `[tokens, heads, size]`, rotated as native/src/elementwise.h does."""
    cosines, sines = (part.unsqueeze(1) for part in angles)
    size = cosines.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    if by_neighbors:
        other = turned.view(*turned.shape[:-1], -1, 2).flip(-1).flatten(-2)
    else:
        other = torch.cat((-turned[..., size // 2 :], turned[..., : size // 2]), dim=-1)
    return torch.cat((turned * cosines + other * sines, rest), dim=-1)


def _are_near(layer: Sequence[Heads], angles: Angles | None, by_neighbors: bool) -> bool:
    """Whether queries and keys after rotation are those before, rotated by these angles, if any."""
    for heads in layer:
        found, after = heads.before.float(), heads.after.float()
        if angles is not None:
            if angles[0].shape[-1] > found.shape[-1]:
                return False
            found = rotated(found, angles, by_neighbors)
        tolerance = _TOLERANCE.get(heads.after.dtype, _ROUNDED_TOLERANCE)
        if not float((found - after).norm()) <= tolerance * float(after.norm()):
            return False
    return True


def _halves(angles: Angles) -> Angles:
    return angles


def _doubled_halves(angles: Angles) -> Angles:
    """Angles of one half only."""
    cosines, sines = angles
    return torch.cat((cosines, cosines), dim=-1), torch.cat((sines, sines), dim=-1)


def _neighbors(angles: Angles) -> Angles:
    """Angles of neighbors side by side."""
    cosines, sines = angles
    signs = torch.tensor([-1.0, 1.0], device=sines.device).repeat(sines.shape[-1] // 2)
    return cosines, sines * signs


def _neighbors_of_halves(angles: Angles) -> Angles:
    """Angles of two equal halves, of which neighbors take one."""
    half = angles[0].shape[-1] // 2
    cosines, sines = (part[..., :half].repeat_interleave(2, dim=-1) for part in angles)
    return _neighbors((cosines, sines))


_FORMS: tuple[tuple[Callable[[Angles], Angles], bool], ...] = (
    (_halves, False),
    (_doubled_halves, False),
    (_neighbors_of_halves, True),
    (_neighbors, True),
)
"""How a model's angles become those of a DecoderModel, and whether neighbors are paired."""


def _formed(form: Callable[[Angles], Angles], table: Table) -> Table:
    return lambda positions: form(table(positions))


def _own_tables(decoder: Any) -> tuple[list[int], list[Table]]:
    """Return the index of each layer's table, and functions from positions to the model's own angles."""
    rotary, num_layers = getattr(decoder, "rotary_emb", None), len(decoder.layers)
    if rotary is None:
        return [0] * num_layers, []
    if "layer_type" not in inspect.signature(rotary.forward).parameters:
        return [0] * num_layers, [_own_table(rotary)]
    types = list(decoder.config.layer_types)
    expect(len(types) == num_layers, f"{len(types)} types of layers")
    kinds = sorted(set(types))
    return [kinds.index(each) for each in types], [_own_table(rotary, each) for each in kinds]


def _own_table(rotary: Any, *layer_type: str) -> Table:
    def angles(positions: torch.Tensor) -> Angles:
        like = torch.empty(0, dtype=torch.float32, device=positions.device)
        with torch.inference_mode():
            found = rotary(like, positions.unsqueeze(0), *layer_type)
        if not isinstance(found, tuple):
            raise OtherKind("positions of another kind")
        cosines, sines = found
        return cosines[0].float(), sines[0].float()

    return angles


def _edges(config: Any) -> tuple[int, ...]:
    """Return the positions where angles may change; it does no harm if a table of angles ends at one needlessly."""
    own = getattr(config.get_text_config(), "max_position_embeddings", None)
    edges = {threshold.tokens for threshold in thresholds(config, sys.maxsize)}
    return tuple(edges if own is None else edges | {own})
