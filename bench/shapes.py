"""Shapes of models."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The dimensions of a Qwen3, which determine its size and speed."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = 40960
    tie_word_embeddings: bool = True


SHAPES = {
    "qwen3-0.6b": Shape(1024, 28, 16, 8, 128, 3072, 151_936),
    "qwen3-8b": Shape(4096, 36, 32, 8, 128, 12288, 151_936, tie_word_embeddings=False),
    "qwen3-tiny": Shape(256, 4, 4, 2, 64, 768, 8192),
}
