"""Grammars of whole answers: thinking first, then calls, or content that follows its own constraint."""

import json
from dataclasses import replace

import numpy as np
import pytest

from orcastream.schemas.constraint import Constraint
from orcastream.text.answer_format import AnswerFormat
from orcastream.text.answer_grammar import answer_grammar
from orcastream.text.answer_parser import AnswerParser
from orcastream.text.grammar import check_constraint
from orcastream.text.matcher import ConstraintFailed, Matcher
from orcastream.text.tokenizer import Tokenizer
from orcastream.text.tools.grammar import Calls, Tool
from orcastream.text.vocabulary import Vocabulary
from tests.text import tiny_tokenizers
from tests.text.called import Called, Joined, joined

TREE = {
    "type": "object",
    "properties": {"left": {"$ref": "#/$defs/tree"}, "value": {"type": "integer"}},
    "required": ["value"],
    "$defs": {"tree": {"type": "object", "properties": {"left": {"$ref": "#"}}, "additionalProperties": False}},
}
CALLS = Calls([Tool("tree", TREE), Tool("stop", {"type": "object", "additionalProperties": False})], required=True)
CALL = '<tool_call>\n{"name": "tree", "arguments": {"left": {"left": {"value": 1}}, "value": 2}}\n</tool_call>'
LLAMA_CALL = '{"name": "tree", "parameters": {"left": {"left": {"value": 1}}, "value": 2}}'
ADULT = Constraint(json_schema=json.dumps({"type": "object", "description": "a ::= b", "additionalProperties": False}))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny_tokenizers.byte_level())


def takes(tokenizer: Tokenizer, grammar: Constraint | None, text: str) -> bool:
    """Return whether an answer may be that text and end there."""
    assert grammar is not None
    check_constraint(grammar)
    vocabulary = Vocabulary.of(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    matcher = Matcher.of(grammar, vocabulary)
    try:
        matcher.consume(tokenizer.encode(text, add_special_tokens=False))
    except ConstraintFailed:
        return False
    mask = np.empty(-(-tokenizer.vocab_size // 32) * 4, dtype=np.uint8)
    matcher.fill(mask)
    end = min(vocabulary.eos_token_ids)
    return bool(mask[end // 8] >> end % 8 & 1)


@pytest.mark.parametrize(
    ("answer_format", "text", "is_taken"),
    [
        ("hermes", CALL, True),
        ("hermes", f"<think>a</think>\n\n{CALL}", False),
        ("think+hermes", CALL, True),
        ("think+hermes", f"<think>a { {} } b</think>\n\n{CALL}", True),
        ("think+hermes", f"<think>a {CALL}", False),
        ("think+hermes", "<think>a</think>b", False),
        ("thinking+hermes", f"a</think>{CALL}\n{CALL}", True),
        ("thinking+hermes", CALL, False),
        ("thinking+llama", 'a</think>{"name": "tree", "parameters": {"value": 3}}', True),
        ("hermes", CALL.replace('"value": 2', '"value": "x"'), False),
        ("hermes", CALL.replace('"value": 2', '"value": 2, "other": 3'), False),
        ("hermes", CALL.replace('"tree"', '"other"'), False),
    ],
)
def test_required_calls(tokenizer: Tokenizer, answer_format: str, text: str, is_taken: bool) -> None:
    assert takes(tokenizer, answer_grammar(AnswerFormat.parse(answer_format), CALLS, None), text) is is_taken


@pytest.mark.parametrize(
    ("content", "good", "bad"),
    [
        (ADULT, "{}", "x"),
        (Constraint(regex="a/b\n\\/[{]"), "a/b\n/{", "a"),
        (Constraint(choice=("yes", 'n"o')), 'n"o', "maybe"),
        (Constraint(grammar='start: /\\{/ inner\ninner: "}"'), "{}", "{"),
    ],
)
def test_thinking_before_constrained_content(tokenizer: Tokenizer, content: Constraint, good: str, bad: str) -> None:
    grammar = answer_grammar(AnswerFormat.parse("thinking"), None, content)
    assert takes(tokenizer, grammar, f"so </thin</think>\n\n{good}")
    assert not takes(tokenizer, grammar, f"so</think>{bad}")
    assert not takes(tokenizer, grammar, good)
    both = answer_grammar(AnswerFormat.parse("hermes"), Calls(CALLS.tools, required=False), content)
    assert takes(tokenizer, both, good)
    assert takes(tokenizer, both, CALL)
    assert not takes(tokenizer, both, bad)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('{"name": "Ann", "age": 3}', ['{"name": "Ann", "age": 3}']),
        ('{"name":"tree","age":3}', ['{"name":"tree","age":3}']),
        ('{"age":\n3}', ['{"age":\n3}']),
        ('{"name": "tree", "parameters": {"value": 3}}', [Called("tree", '{"value": 3}')]),
        (
            '{"name":"tree","parameters":{"left":{"left":{"value":1}},"value":2}}',
            [Called("tree", '{"left":{"left":{"value":1}},"value":2}')],
        ),
    ],
)
def test_content_with_a_name_is_distinguished_from_calls(tokenizer: Tokenizer, text: str, parts: list[Joined]) -> None:
    """In a format whose calls have no marks."""
    person = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    content = Constraint(json_schema=json.dumps(person | {"additionalProperties": False}))
    answer_format = AnswerFormat.parse("llama")
    grammar = answer_grammar(answer_format, Calls(CALLS.tools, required=False), content)
    assert takes(tokenizer, grammar, text)
    assert not takes(tokenizer, grammar, text.replace("3", '"x"').replace("2", '"x"'))
    parser = AnswerParser(answer_format)
    assert joined([*parser.push(text), *parser.finish()]) == parts


LEADS = [
    "",
    " ",
    "\n\n",
    " <|python_tag|>\n",
    "<think>a</think>",
    "\n <think>a <tool_call> b</think>\n\n ",
    "a</think>",
    "a</think>\n\n\n\n\n",
]


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("calls", ["hermes", "llama"])
@pytest.mark.parametrize("thinking", ["", "think+", "thinking+"])
def test_every_text_parsed_as_a_call_follows_its_schema(
    tokenizer: Tokenizer, thinking: str, calls: str, lead: str
) -> None:
    """Even if no call is required, and whatever precedes it."""
    answer_format = AnswerFormat.parse(thinking + calls)
    grammar = answer_grammar(answer_format, replace(CALLS, required=False), None)
    good = CALL if calls == "hermes" else LLAMA_CALL
    bad = [good.replace('"value": 2', '"value": "x"'), good.replace('"tree"', '"other"')]
    is_spoilt = "<tool_call>" in lead and thinking + calls == "hermes"
    num_read = 0
    for body in (good, *bad):
        parser = AnswerParser(answer_format)
        parts = joined([*parser.push(lead + body), *parser.finish()])
        if any(isinstance(part, Called) for part in parts):
            assert takes(tokenizer, grammar, lead + body) is (body == good and not is_spoilt)
            num_read += 1
    assert num_read in (0, 3)
    may_end = "</think>" in lead or thinking != "thinking+"
    assert takes(tokenizer, grammar, f"{lead}text") is (may_end and not is_spoilt)


def test_unconstrained_answers_have_no_grammar() -> None:
    assert answer_grammar(AnswerFormat.parse("think+hermes"), None, None) is None
    assert answer_grammar(AnswerFormat.parse("hermes"), None, ADULT) is ADULT
