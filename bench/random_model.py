"""A model of a given shape or configuration with random weights, and a tokenizer with one made-up word per token."""

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3MoeConfig,
)

from orcastream.bench.shapes import Shape
from orcastream.cli.errors import UserError
from orcastream.engine.errors import one_line
from orcastream.engine.model.quiet import quiet

_PAD, _EOS = 0, 2
"""Of the tokenizer."""


def make_model(config: PreTrainedConfig, directory: Path, seed: int = 0) -> int:
    """Write the checkpoint, with the weights that training would begin with; return its number of parameters.

    Raises UserError if `directory` cannot be used, or if no decoder has that configuration.
    """
    allowed = "an empty directory, or one that does not exist"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        is_empty = not any(directory.iterdir())
    except OSError as error:
        raise UserError(f"directory: got {str(directory)!r}, allowed: {allowed} ({error.strerror})") from None
    if not is_empty:
        raise UserError(f"directory: got {str(directory)!r}, allowed: {allowed}")
    torch.manual_seed(seed)
    try:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        allowed = "a configuration from which transformers can make a decoder"
        raise UserError(f"--config: got {config.model_type!r}, allowed: {allowed} ({one_line(error)})") from None
    with quiet():
        model.save_pretrained(directory)
    for written in directory.glob("*.safetensors"):
        written.chmod(0o644)  # safetensors makes it private to its owner; a worker may run as another user
    _tokenizer(config.get_text_config().vocab_size).save_pretrained(directory)
    generation = {"eos_token_id": _EOS, "pad_token_id": _PAD}
    (directory / "generation_config.json").write_text(json.dumps(generation) + "\n", encoding="utf-8")
    return int(model.num_parameters())


def read_config(path: Path) -> PreTrainedConfig:
    """Return the configuration in a file or directory, for weights in bfloat16 and the tokenizer that is written.

    Raises UserError if it is none that transformers knows.
    """
    try:
        with quiet():
            config = AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        allowed = "a config.json of an architecture that transformers knows"
        raise UserError(f"--config: got {str(path)!r}, allowed: {allowed} ({one_line(error)})") from None
    config.dtype = torch.bfloat16
    config.bos_token_id, config.eos_token_id, config.pad_token_id = None, _EOS, _PAD
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


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
        "eos_token_id": _EOS,
        "pad_token_id": _PAD,
    }
    return kind(**settings)


def _tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer with the word `w7` for token 7; the first three are padding, unknown word and end."""
    words = ["<pad>", "<unk>", "<eos>", *(f"w{number}" for number in range(3, vocab_size))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>")
