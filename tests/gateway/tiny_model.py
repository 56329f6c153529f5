"""A model directory without weights: only the tokenizer and configuration, which are all that a gateway reads."""

import json
from pathlib import Path

from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from tests.text import tiny_tokenizers

MAX_MODEL_LEN = 256


def write_tiny_model(folder: Path, *, chat: bool = True, max_model_len: int = MAX_MODEL_LEN) -> Path:
    """Write the files to `folder`; the vocabulary has a few hundred tokens, ids 0 to 2 are special, 2 ends a text."""
    tokenizer = tiny_tokenizers.byte_level() if chat else tiny_tokenizers.byte_level(chat_template=None)
    return _write(folder, tokenizer, MAX_MODEL_LEN)


def write_thinking_model(folder: Path) -> Path:
    """Write a model whose chat template reads two variables and the speaker's name."""
    template = (
        "{%- for message in messages -%}"
        "{{- message['role'] + (':' + message['name'] if message['name'] else '') + ' ' -}}"
        "{{- message['content'] + '\n' -}}{%- endfor -%}"
        "{%- if enable_thinking is defined and not enable_thinking -%}no thinking{%- endif -%}"
        "{%- if reasoning_effort -%}effort {{ reasoning_effort }}{%- endif -%}"
    )
    return _write(folder, tiny_tokenizers.byte_level(chat_template=template), MAX_MODEL_LEN)


def write_framing_model(folder: Path) -> Path:
    """Write a model whose tokenizer puts special tokens around a text."""
    tokenizer = tiny_tokenizers.byte_level()
    control = [
        (token, tokenizer.convert_tokens_to_ids(token)) for token in (tiny_tokenizers.START, tiny_tokenizers.END)
    ]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{tiny_tokenizers.START} $A {tiny_tokenizers.END}", special_tokens=control
    )
    return _write(folder, tokenizer, MAX_MODEL_LEN)


def write_other_model(folder: Path) -> Path:
    """Write a model with another kind of tokenizer, where id 2 also ends a text, and with half the context."""
    return _write(folder, tiny_tokenizers.byte_fallback(), MAX_MODEL_LEN // 2)


def _write(folder: Path, tokenizer: PreTrainedTokenizerFast, max_model_len: int) -> Path:
    tokenizer.save_pretrained(folder)
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": len(tokenizer),
        "max_position_embeddings": max_model_len,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
