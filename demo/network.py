"""The network: a small Qwen3 with grouped-query attention and tied embeddings."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention
from transformers.utils import CONFIG_NAME

from orcastream.demo.tokenizer import END, PAD

MAX_POSITIONS = 4096
MATCHING_LAYERS = 2
"""Number of first layers whose heads initially attend to earlier copies of their own token."""


def new_network(tokenizer: Tokenizer) -> Qwen3ForCausalLM:
    """Return a network with fresh float32 weights for this vocabulary."""
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=192,
        intermediate_size=576,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=True,
        attention_dropout=0.0,
        use_cache=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    config._attn_implementation = "sdpa"
    network = Qwen3ForCausalLM(config)
    for layer in network.model.layers[:MATCHING_LAYERS]:
        _match_own_token(layer.self_attn)
    return network


def _match_own_token(attention: Qwen3Attention) -> None:
    """Initialize keys as copies of queries: equal tokens then attract, which is how a count recognizes its end."""
    with torch.no_grad():
        queries = attention.q_proj.weight.unflatten(0, (-1, attention.head_dim))
        keys = attention.k_proj.weight.unflatten(0, (-1, attention.head_dim))
        keys.copy_(queries[:: attention.num_key_value_groups])


def save_network(network: Qwen3ForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write config.json, generation_config.json and the weights, rounded to bfloat16.

    The configuration says float32: the default dtype for computing, so that answers stay exact.
    """
    rounded = Qwen3ForCausalLM(network.config)
    rounded.load_state_dict(network.state_dict())
    rounded.to(torch.bfloat16)
    rounded.generation_config = GenerationConfig(
        do_sample=False,
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    rounded.save_pretrained(folder)
    path = folder / CONFIG_NAME
    told = json.loads(path.read_text(encoding="utf-8")) | {"dtype": "float32"}
    path.write_text(json.dumps(told, indent=2, sort_keys=True) + "\n", encoding="utf-8")
