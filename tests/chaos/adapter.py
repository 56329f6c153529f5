"""A LoRA adapter for the demo model, with random weights that change its answers: without the product's code and torch,
which the suite does not use.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

NAME = "chaos-adapter"
_RANK = 4


def save_adapter(model: Path, folder: Path) -> None:
    """Write an adapter of the model's first projections to a new folder, in the form of PEFT."""
    config = json.loads((model / "config.json").read_text())
    hidden, heads, head_dim = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    random = np.random.default_rng(7)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        for half, shape in (("lora_A", (_RANK, hidden)), ("lora_B", (heads * head_dim, _RANK))):
            weights[f"{name}.{half}.weight"] = random.normal(0, shape[1] ** -0.5, shape).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": _RANK, "lora_alpha": 2 * _RANK}
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"target_modules": ["q_proj"]}))
