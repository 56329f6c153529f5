"""Thinking, content and calls of one answer, however its text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.text.answer_format import AnswerFormat
from orcastream.text.answer_parser import AnswerParser, AnswerPart, Reasoning
from orcastream.text.tools.call import ToolCall

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
CASES: list[tuple[str, str, list[AnswerPart]]] = [
    ("", f"<think>a</think>{CALL}", [f"<think>a</think>{CALL}"]),
    ("think", f"<think>\na\n</think>\n\nb{CALL}", [Reasoning("a"), f"b{CALL}"]),
    ("hermes", f"<think>a</think>\n{CALL}", ["<think>a</think>", ToolCall("f", "{}")]),
    ("think+hermes", f"<think>{CALL}</think>b\n{CALL}", [Reasoning(CALL), "b", ToolCall("f", "{}")]),
    ("thinking+hermes", f"a</think>\n\n{CALL}", [Reasoning("a"), ToolCall("f", "{}")]),
    ("thinking+hermes", f"a {CALL}", [Reasoning(f"a {CALL}")]),
    ("thinking+llama", 'a</think>{"name": "f", "parameters": {}}', [Reasoning("a"), ToolCall("f", "{}")]),
    ("think+llama", '<think>a</think>{"name": ', [Reasoning("a"), '{"name": ']),
]


def parsed(answer_format: str, pieces: list[str]) -> list[AnswerPart]:
    """All parts, neighbours of one kind as one."""
    parser = AnswerParser(AnswerFormat.parse(answer_format))
    parts: list[AnswerPart] = []
    for part in [*(part for piece in pieces for part in parser.push(piece)), *parser.finish()]:
        last = parts[-1] if parts else None
        if isinstance(part, str) and isinstance(last, str):
            parts[-1] = last + part
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            parts[-1] = Reasoning(last.text + part.text)
        else:
            parts.append(part)
    return parts


@pytest.mark.parametrize(("answer_format", "text", "parts"), CASES)
def test_parts(answer_format: str, text: str, parts: list[AnswerPart]) -> None:
    assert parsed(answer_format, [text]) == parts
    assert parsed(answer_format, list(text)) == parts


@given(
    st.sampled_from([name for name, _, _ in CASES]),
    st.lists(st.sampled_from(["<think>", "</think>", *CALL.partition(" "), "\n", "a", '{"name": "f"}'])),
)
def test_cuts_change_nothing(answer_format: str, pieces: list[str]) -> None:
    assert parsed(answer_format, pieces) == parsed(answer_format, ["".join(pieces)])


@pytest.mark.parametrize("text", ["", "think", "thinking", "hermes", "llama", "think+hermes", "thinking+llama"])
def test_a_format_travels_as_text(text: str) -> None:
    assert str(AnswerFormat.parse(text)) == text
    assert AnswerFormat.parse(text).is_plain is (not text)


@pytest.mark.parametrize("text", ["think+unheard_of", "think+thinking", "hermes+llama", "+"])
def test_a_format_that_is_not_known_is_plain(text: str) -> None:
    assert AnswerFormat.parse(text).is_plain


def test_arguments_are_always_text_that_can_be_sent() -> None:
    body = r'{"name": "f", "arguments": {"a": "\ud83d", "b": "\ud83d\ude00"}}'
    (call,) = parsed("hermes", [f"<tool_call>{body}</tool_call>"])
    assert call == ToolCall("f", r'{"a": "\ud83d", "b": "\ud83d\ude00"}')
    for arguments in ('{"a": NaN}', '{"a": 1e999}', '{"a": "\ud83d"}'.replace("\ud83d", "\\ud83d") + "x"):
        text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
        assert parsed("hermes", [text]) == [text]
