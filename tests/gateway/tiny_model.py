"""A model directory without a model: tokenizer and configuration, which is all that a gateway reads."""

import json
from pathlib import Path

from tests.text import tiny_tokenizers

MAX_MODEL_LEN = 256


def write_tiny_model(folder: Path, *, chat: bool = True) -> Path:
    """Write the files into `folder`; vocabulary of a few hundred tokens, ids 0 to 2 special, 2 ends a text."""
    tokenizer = tiny_tokenizers.byte_level() if chat else tiny_tokenizers.byte_level(chat_template=None)
    tokenizer.save_pretrained(folder)
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": len(tokenizer),
        "max_position_embeddings": MAX_MODEL_LEN,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
