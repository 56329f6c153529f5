"""The shape of a model."""

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig


@dataclass(frozen=True)
class Shape:
    """The shape of a standard decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int

    @classmethod
    def of(cls, config: PretrainedConfig) -> "Shape":
        """Return a configuration's shape. Raises AttributeError for another kind of model."""
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            head_size,
            config.intermediate_size,
            config.vocab_size,
        )

    def linears(self) -> list[tuple[int, int]]:
        """Return columns and depth of one layer's linear layers."""
        return [
            ((self.heads + 2 * self.kv_heads) * self.head_size, self.hidden),
            (self.hidden, self.heads * self.head_size),
            (2 * self.intermediate, self.hidden),
            (self.hidden, self.intermediate),
        ]

    def kv_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        """Return the size of keys and values of that many tokens in all layers."""
        return tokens * self.layers * 2 * self.kv_heads * self.head_size * dtype.itemsize
