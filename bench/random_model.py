"""A model of a given shape with random weights, and a tokenizer with one made-up word per token."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3MoeConfig,
)

from orcastream.bench.shapes import Shape
from orcastream.cli.errors import UserError


def make_model(shape: Shape, directory: Path, seed: int = 0) -> int:
    """Write the checkpoint; return its number of parameters. Raises UserError if `directory` cannot be used."""
    allowed = "an empty directory, or one that does not exist"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        is_empty = not any(directory.iterdir())
    except OSError as error:
        raise UserError(f"directory: got {str(directory)!r}, allowed: {allowed} ({error.strerror})") from None
    if not is_empty:
        raise UserError(f"directory: got {str(directory)!r}, allowed: {allowed}")
    config = model_config(shape)
    with torch.device("meta"):
        names = dict(AutoModelForCausalLM.from_config(config).named_parameters())
    weights = _random(names, config.initializer_range, seed)
    written = directory / "model.safetensors"
    save_file(weights, written, metadata={"format": "pt"})
    written.chmod(0o644)  # safetensors makes it private to its owner; a worker may run as another user
    config.save_pretrained(directory)
    _tokenizer(shape.vocab_size).save_pretrained(directory)
    generation = {"eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id}
    (directory / "generation_config.json").write_text(json.dumps(generation) + "\n", encoding="utf-8")
    return sum(weight.numel() for weight in weights.values())


def model_config(shape: Shape) -> PreTrainedConfig:
    """Return the configuration of a checkpoint of that shape."""
    kind, architecture = (
        (Qwen3MoeConfig, "Qwen3MoeForCausalLM") if shape.num_experts else (Qwen3Config, "Qwen3ForCausalLM")
    )
    settings: dict[str, Any] = {
        **{name: value for name, value in vars(shape).items() if value or not name.startswith(("num_experts", "moe"))},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "dtype": torch.bfloat16,
        "architectures": [architecture],
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return kind(**settings)


def _random(names: dict[str, torch.Tensor], deviation: float, seed: int) -> dict[str, torch.Tensor]:
    """Return normal numbers of that standard deviation, ones for norms: transformers' initial weights for training."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, tensor in names.items():
        weight = torch.empty(tensor.shape, dtype=torch.bfloat16)
        weights[name] = weight.fill_(1.0) if tensor.ndim == 1 else weight.normal_(0.0, deviation, generator=generator)
    return weights


def _tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer with the word `w7` for token 7; the first three are padding, unknown word and end."""
    words = ["<pad>", "<unk>", "<eos>", *(f"w{number}" for number in range(3, vocab_size))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>")
