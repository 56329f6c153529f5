"""The KV cache's size per token is found without weights."""

import json
from pathlib import Path

import torch

import demo
from bench.kv_memory import bytes_per_token


def test_kv_memory_is_what_the_configuration_says() -> None:
    config = json.loads((Path(demo.MODEL_DIR) / "config.json").read_text(encoding="utf-8"))
    values = config["num_hidden_layers"] * config["num_key_value_heads"] * 2 * config["head_dim"]
    assert bytes_per_token(str(demo.MODEL_DIR), torch.float32) == 4 * values
    assert bytes_per_token(str(demo.MODEL_DIR), torch.bfloat16) == 2 * values
