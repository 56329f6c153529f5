"""Thinking, content and calls of one answer, however its text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.text.answer_format import AnswerFormat
from orcastream.text.answer_parser import AnswerParser, Reasoning
from tests.text.called import Called, Joined, joined

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
CASES: list[tuple[str, str, list[Joined]]] = [
    ("", f"<think>a</think>{CALL}", [f"<think>a</think>{CALL}"]),
    ("think", f"<think>\na\n</think>\n\nb{CALL}", [Reasoning("a"), f"b{CALL}"]),
    ("hermes", f"<think>a</think>\n{CALL}", ["<think>a</think>", Called("f", "{}")]),
    ("think+hermes", f"<think>{CALL}</think>b\n{CALL}", [Reasoning(CALL), "b", Called("f", "{}")]),
    ("thinking+hermes", f"a</think>\n\n{CALL}", [Reasoning("a"), Called("f", "{}")]),
    ("thinking+hermes", f"a {CALL}", [Reasoning(f"a {CALL}")]),
    ("thinking+llama", 'a</think>{"name": "f", "parameters": {}}', [Reasoning("a"), Called("f", "{}")]),
    ("thinking+llama", 'a</think>{"name": "Ann", "age": 3}', [Reasoning("a"), '{"name": "Ann", "age": 3}']),
    ("think+llama", '<think>a</think>{"name": ', [Reasoning("a"), '{"name": ']),
]


def parsed(answer_format: str, pieces: list[str]) -> list[Joined]:
    """Return all parts, with neighbors of one kind merged."""
    parser = AnswerParser(AnswerFormat.parse(answer_format))
    return joined([*(part for piece in pieces for part in parser.push(piece)), *parser.finish()])


@pytest.mark.parametrize(("answer_format", "text", "parts"), CASES)
def test_parts(answer_format: str, text: str, parts: list[Joined]) -> None:
    assert parsed(answer_format, [text]) == parts
    assert parsed(answer_format, list(text)) == parts


@given(
    st.sampled_from([name for name, _, _ in CASES]),
    st.lists(st.sampled_from(["<think>", "</think>", *CALL.partition(" "), "\n", "a", '{"name": "f"}'])),
)
def test_cuts_change_nothing(answer_format: str, pieces: list[str]) -> None:
    assert parsed(answer_format, pieces) == parsed(answer_format, ["".join(pieces)])


@pytest.mark.parametrize("text", ["", "think", "thinking", "hermes", "llama", "think+hermes", "thinking+llama"])
def test_a_format_is_serialized_as_text(text: str) -> None:
    assert str(AnswerFormat.parse(text)) == text
    assert AnswerFormat.parse(text).is_plain is (not text)


@pytest.mark.parametrize("text", ["think+unheard_of", "think+thinking", "hermes+llama", "+"])
def test_an_unknown_format_is_plain(text: str) -> None:
    assert AnswerFormat.parse(text).is_plain


def test_arguments_are_always_encodable_text() -> None:
    arguments = r'{"a": "\ud83d", "b": "\ud83d\ude00"}'
    (call,) = parsed("hermes", [f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'])
    assert call == Called("f", arguments)
    assert arguments.encode()
