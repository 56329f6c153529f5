"""Shapes of models."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The dimensions of a Qwen3, which determine its size and speed; with `num_experts`, of a Qwen3-MoE."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = 40960
    tie_word_embeddings: bool = True
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0


SHAPES = {
    "qwen3-0.6b": Shape(1024, 28, 16, 8, 128, 3072, 151_936),
    "qwen3-8b": Shape(4096, 36, 32, 8, 128, 12288, 151_936, tie_word_embeddings=False),
    "qwen3-moe-0.7b": Shape(
        1024, 8, 16, 4, 64, 3072, 32_768, num_experts=64, num_experts_per_tok=8, moe_intermediate_size=384
    ),
    "qwen3-tiny": Shape(256, 4, 4, 2, 64, 768, 8192),
}
