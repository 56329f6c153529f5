"""What the layers of a model keep per token, and which of them share block tables."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer keeps per token: `num_kv_heads` keys and values of these sizes.

    A query at position p sees keys at positions `p - window + 1` … p; no window: 0 … p.
    """

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """The layers of one window, by their place in the order in which they run; they share one block table."""

    window: int | None
    layers: tuple[int, ...]


def group_layers(shapes: Sequence[LayerShape], max_model_len: int) -> tuple[LayerGroup, ...]:
    """The groups of a model, the one without a window first; a window that no request outgrows is none."""
    windows = [None if shape.window is None or shape.window >= max_model_len else shape.window for shape in shapes]
    kinds = sorted(set(windows), key=lambda window: (window is not None, -(window or 0)))
    return tuple(
        LayerGroup(kind, tuple(layer for layer, window in enumerate(windows) if window == kind)) for kind in kinds
    )


def most_blocks_touched(num_tokens: int, block_size: int) -> int:
    """Most blocks that so many neighbouring tokens (at least one) lie in, wherever the first one is."""
    return -(-(num_tokens - 1) // block_size) + 1
