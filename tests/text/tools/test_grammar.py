"""Calls that a grammar makes a model write are those that the format's parser reads."""

import json
import random
from typing import Any

import numpy as np
import pytest

from orcastream.schemas.constraint import Constraint
from orcastream.text.answer_format import AnswerFormat
from orcastream.text.answer_grammar import answer_grammar
from orcastream.text.grammar import check_constraint
from orcastream.text.matcher import Matcher
from orcastream.text.tokenizer import Tokenizer
from orcastream.text.tools.call import ToolParser
from orcastream.text.tools.formats import TOOL_FORMATS
from orcastream.text.tools.grammar import Calls, Tool
from orcastream.text.tools.hermes import HermesParser
from orcastream.text.tools.llama import LlamaParser
from orcastream.text.vocabulary import Vocabulary
from tests.text import tiny_tokenizers
from tests.text.called import Called, Joined, joined

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Köln", 'a "b"']}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [Tool("weather", CITY), Tool("stop", {"type": "object", "additionalProperties": False})]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    return Vocabulary.of(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)


def grammar_of(name: str, calls: Calls) -> str:
    constraint = answer_grammar(AnswerFormat(calls=TOOL_FORMATS[name]), calls, None)
    assert constraint is not None
    return constraint.grammar


def said(grammar: str, vocabulary: Vocabulary, seed: int) -> str | None:
    """Return a random text that follows the grammar to its end; None means it grew too long."""
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    assert tokenizer.token_bytes is not None
    constraint = Constraint(grammar=grammar)
    check_constraint(constraint)
    matcher, draw, text = Matcher.of(constraint, vocabulary), random.Random(seed), b""
    mask = np.empty(-(-tokenizer.vocab_size // 32) * 4, dtype=np.uint8)
    for _ in range(400):
        matcher.fill(mask)
        found = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
        if vocabulary.eos_token_ids & set(found) and (len(found) == 1 or draw.random() < 0.3):
            return text.decode(errors="replace")
        token = draw.choice([each for each in found if each not in vocabulary.eos_token_ids])
        text += tokenizer.token_bytes[token]
        matcher.consume([token])
    return None


def parts(parser: ToolParser, text: str) -> list[Joined]:
    return joined([*parser.push(text), *parser.finish()])


def is_right(call: object) -> bool:
    if not isinstance(call, Called) or not call.is_whole:
        return False
    arguments = json.loads(call.arguments)
    if call.name == "stop":
        return arguments == {}
    return call.name == "weather" and arguments["city"] in CITY["properties"]["city"]["enum"] and arguments["days"] > 0


@pytest.mark.parametrize("seed", range(6))
def test_required_calls_are_calls_and_nothing_else(vocabulary: Vocabulary, seed: int) -> None:
    found = said(grammar_of("hermes", Calls(TOOLS, required=True)), vocabulary, seed)
    if found is not None:
        calls = parts(HermesParser(), found)
        assert calls
        assert all(map(is_right, calls))
    one = said(grammar_of("hermes", Calls(TOOLS, required=True, parallel=False)), vocabulary, seed)
    assert one is not None
    (call,) = parts(HermesParser(), one)
    assert is_right(call)
    llama = said(grammar_of("llama", Calls(TOOLS, required=True)), vocabulary, seed)
    assert llama is not None
    (call,) = parts(LlamaParser(), llama)
    assert is_right(call)


@pytest.mark.parametrize("parallel", [True, False])
def test_if_no_call_is_required_text_is_allowed(vocabulary: Vocabulary, parallel: bool) -> None:
    grammar = grammar_of("hermes", Calls(TOOLS, required=False, parallel=parallel))
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())

    def takes(text: str) -> bool:
        matcher = Matcher.of(Constraint(grammar=grammar), vocabulary)
        try:
            matcher.consume(tokenizer.encode(text, add_special_tokens=False))
        except ValueError:
            return False
        mask = np.empty(-(-tokenizer.vocab_size // 32) * 4, dtype=np.uint8)
        matcher.fill(mask)
        return bool(mask[min(vocabulary.eos_token_ids) // 8] >> min(vocabulary.eos_token_ids) % 8 & 1)

    call = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
    assert takes("")
    assert takes("just <text>")
    assert takes(f"Let me see.\n{call}")
    assert takes(f"{call}\n{call}") is parallel
    assert not takes("<tool_call>\nno")
    assert not takes("<tool_call>")
