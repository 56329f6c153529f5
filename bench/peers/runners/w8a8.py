"""A checkpoint with int8 weights in the format of compressed-tensors, which vLLM reads."""

import json
import shutil
from pathlib import Path
from typing import Any

_NUMBERS: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True}
_NOT_LINEAR = ("embed_tokens", "lm_head")


def write_w8a8(model: Path, into: Path) -> None:
    """Quantize with one scale per output channel, rounding to nearest; embeddings and head stay unchanged."""
    from safetensors.torch import load_file, save_file

    into.mkdir(parents=True)
    for file in model.iterdir():
        if file.is_file() and file.suffix != ".safetensors" and file.name != "model.safetensors.index.json":
            shutil.copy(file, into)
    for file in model.glob("*.safetensors"):
        written: dict[str, Any] = {}
        for name, weight in load_file(file).items():
            written.update(_quantized(name, weight) if _is_linear(name, weight) else {name: weight})
        save_file(written, into / file.name, metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = _quantization()
    (into / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _is_linear(name: str, weight: Any) -> bool:
    return name.endswith(".weight") and weight.ndim == 2 and not any(part in name for part in _NOT_LINEAR)


def _quantized(name: str, weight: Any) -> dict[str, Any]:
    """Return the weight `[out, in]` in int8 and its scales `[out, 1]`."""
    import torch

    numbers = weight.float()
    scale = numbers.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
    return {
        name: (numbers / scale).round().clamp(-127, 127).to(torch.int8),
        f"{name}_scale": scale.to(weight.dtype),
    }


def _quantization() -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": {**_NUMBERS, "strategy": "channel", "dynamic": False},
        "input_activations": {**_NUMBERS, "strategy": "token", "dynamic": True},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }
