"""LoRA adapters as saved by PEFT, and models merged by PEFT."""

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from orcastream.engine.model.quiet import quiet

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]


def save_adapter(model: PreTrainedModel, folder: Path, *, seed: int, **settings: Any) -> Path:
    """Save a random adapter of `model`, which stays unchanged; it is strong enough to change the next tokens."""
    from peft import LoraConfig, get_peft_model

    chosen: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION + MLP, **settings}
    torch.manual_seed(seed)
    with quiet():
        adapted = get_peft_model(copy.deepcopy(model), LoraConfig(task_type="CAUSAL_LM", **chosen))
        with torch.no_grad():
            for name, weight in adapted.named_parameters():
                if "lora_" in name:
                    weight.copy_(torch.randn_like(weight) * weight.shape[-1] ** -0.5)
        adapted.save_pretrained(str(folder), save_embedding_layers=False)
    return folder


def merged(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return a copy of `model` whose weights PEFT has merged with the adapter in `folder`."""
    from peft import PeftModel

    with quiet():
        changed: PreTrainedModel = PeftModel.from_pretrained(copy.deepcopy(model), folder).merge_and_unload().eval()
    return changed
