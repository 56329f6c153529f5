"""The committed model matches its page: stored in bfloat16, computed in float32."""

import json

import pytest
import torch

from orcastream.demo import MODEL_DIR, held_out
from orcastream.demo.chat import FORMS, prompt, reply
from orcastream.demo.counting import LONG_KIND, count
from orcastream.demo.prompts import LONG_COUNT, SHOWCASE
from orcastream.demo.questions import questions
from orcastream.demo.reader import Reader
from orcastream.demo.tasks import Example


def _asked(question: str, answer: str) -> Example:
    return Example("asked", question, question, answer)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["counting", "spelling", "calendar", "sums", LONG_KIND])
def test_held_out_prompts(reader: Reader, kind: str, form: str) -> None:
    right = [reader.recites(item, form) for item in held_out(kind, 20 if kind == LONG_KIND else 100)]
    assert sum(right) >= 0.95 * len(right)


def test_all_questions_by_generation(reader: Reader) -> None:
    wrong = [
        item.question for item, right in zip(questions(), reader.answers(questions(), "chat"), strict=True) if not right
    ]
    assert not wrong


@pytest.mark.parametrize("form", FORMS)
def test_all_questions(reader: Reader, form: str) -> None:
    assert [item.question for item in questions() if not reader.recites(item, form)] == []


@pytest.mark.parametrize("form", FORMS)
def test_showcase(reader: Reader, form: str) -> None:
    assert [question for question, answer in SHOWCASE if not reader.recites(_asked(question, answer), form)] == []


def test_one_to_three_hundred_by_generation(reader: Reader) -> None:
    question, answer = LONG_COUNT
    assert reader.generate([prompt(question, "chat")], 1200) == [reply(answer, "chat")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("first", "last"), [(1, 300), (1, 200), (50, 250), (100, 400)])
def test_long_counts(reader: Reader, first: int, last: int, form: str) -> None:
    assert reader.recites(_asked(f"Count from {first} to {last}", count(first, last)), form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "question", ["Count from 3 to 12", "Count from 3 to 12.", "count from 3 to 12", "Please count from 3 to 12"]
)
def test_wordings(reader: Reader, question: str, form: str) -> None:
    assert reader.recites(_asked(question, count(3, 12)), form)


def test_answers_under_a_system_message_and_in_later_turns(reader: Reader) -> None:
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Spell whale"},
        {"role": "assistant", "content": "w-h-a-l-e"},
        {"role": "user", "content": "What is a block table?"},
    ]
    text = reader.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    wanted = next(item.answer for item in questions() if item.question == "What is a block table?")
    assert reader.generate([text], 60) == [reply(wanted, "chat")]


def test_size_and_configuration(reader: Reader) -> None:
    config = json.loads((MODEL_DIR / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["dtype"] == "float32"  # so that `auto` computes in float32 everywhere
    assert config["max_position_embeddings"] == 4096
    assert config["tie_word_embeddings"] is True
    assert 2_000_000 <= sum(weight.numel() for weight in reader.model.parameters()) <= 4_000_000
    assert sum(path.stat().st_size for path in MODEL_DIR.iterdir()) <= 8_000_000
    assert reader.model.dtype == torch.float32
    assert reader.model.generation_config.eos_token_id == reader.tokenizer.eos_token_id
    assert reader.model.generation_config.pad_token_id == reader.tokenizer.pad_token_id
