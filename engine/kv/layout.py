"""The layout of the KV cache: what each layer stores per token, and which layers share block tables."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer stores per token: `num_kv_heads` keys and values of these sizes.

    A query at position p sees keys at positions `p - window + 1` … p; without a window 0 … p.
    """

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """The layers with one window, by their position in execution order; they share one block table."""

    window: int | None
    layers: tuple[int, ...]


def group_layers(shapes: Sequence[LayerShape], max_model_len: int) -> tuple[LayerGroup, ...]:
    """Return the groups of a model, the one without a window first; a window that no request exceeds counts as none."""
    windows = [None if shape.window is None or shape.window >= max_model_len else shape.window for shape in shapes]
    kinds = sorted(set(windows), key=lambda window: (window is not None, -(window or 0)))
    return tuple(
        LayerGroup(kind, tuple(layer for layer, window in enumerate(windows) if window == kind)) for kind in kinds
    )


def most_blocks_touched(num_tokens: int, block_size: int) -> int:
    """Return the most blocks that `num_tokens` (at least 1) neighboring tokens can span, wherever they begin."""
    return -(-(num_tokens - 1) // block_size) + 1
