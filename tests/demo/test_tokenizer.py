"""The tokenizer and the chat template of the committed model."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from orcastream.demo import MODEL_DIR
from orcastream.demo.chat import prompt
from orcastream.demo.tokenizer import train_tokenizer

TOKENIZER: Any = AutoTokenizer.from_pretrained(MODEL_DIR)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_the_round_trip(text: str) -> None:
    ids = TOKENIZER(text)["input_ids"]
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", ["don 't , you ?", "été 🐋 鯨 \u0301", "a\r\n\tb  c", " 1 , 2 ,3"])
def test_round_trip_keeps_spaces_and_signs(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == text


def test_numbers_up_to_five_hundred_are_tokens() -> None:
    assert all(TOKENIZER.tokenize(str(number)) == [str(number)] for number in range(501))
    assert TOKENIZER.tokenize("501") == ["5", "0", "1"]
    assert TOKENIZER.tokenize("007") == ["0", "0", "7"]


def test_special_tokens() -> None:
    assert (TOKENIZER.eos_token, TOKENIZER.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert TOKENIZER.model_max_length == 4096
    assert len(TOKENIZER("<|im_start|><|im_end|>")["input_ids"]) == 2


def test_the_script_rebuilds_the_committed_tokenizer() -> None:
    committed = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    assert train_tokenizer().get_vocab() == committed.get_vocab()


def _render(messages: list[dict[str, Any]], **options: Any) -> str:
    return str(TOKENIZER.apply_chat_template(messages, tokenize=False, **options))


def test_template_renders_the_training_format() -> None:
    messages = [{"role": "user", "content": "Spell orca"}]
    assert _render(messages, add_generation_prompt=True) == prompt("Spell orca", "chat")
    assert _render(messages) == "<|im_start|>user\nSpell orca<|im_end|>\n"


def test_template_accepts_a_system_message_and_many_turns() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": [{"type": "text", "text": "Spell "}, {"type": "text", "text": "orca"}]},
    ]
    assert _render(messages, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n" + prompt("Spell orca", "chat")
    )


def test_template_accepts_empty_content() -> None:
    assert _render([{"role": "assistant", "content": None}]) == "<|im_start|>assistant\n<|im_end|>\n"
