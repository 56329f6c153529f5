"""Calls are separated from text, however the text is cut."""

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.text.tools.call import CallArguments, CallStart, Part, ToolParser
from orcastream.text.tools.hermes import HermesParser
from orcastream.text.tools.llama import LlamaParser
from tests.text.called import Called, Joined, cut, joined
from tests.text.spaces import Spaces

HARD = '{"a": "</tool_call> } \\" \\\\", "é": [1e3, {"b": "\\u00e9\\ud83d"}],\n "\U0001f44d": null}'
"""Arguments with all that could be taken for their end."""
NONE = '{{"name": "{}", "parameters": {{}}}}'
HERMES: list[tuple[str, list[Joined]]] = [
    ("no call", ["no call"]),
    ("spaces at the end stay \n", ["spaces at the end stay \n"]),
    ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', [Called("f", '{"a": 1}')]),
    (f'<tool_call>\n{{"name": "f", "arguments": {HARD}}}\n</tool_call>', [Called("f", HARD)]),
    (
        'Let me see.\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n<tool_call>{"name":"g"}</tool_call>\n',
        ["Let me see.", Called("f", "{}"), Called("g", "{}")],
    ),
    ('<tool_call>{"name":"f"}</tool_call>\n\nand then\n', [Called("f", "{}"), "and then"]),
    ('<tool_call>{"arguments": {"a": {}}, "name": "f"}</tool_call>', [Called("f", '{"a": {}}')]),
    (
        '<tool_call>{"type": "function", "n\\u0061me": "\\u0066", "arguments":{}, "id": [{}]}</tool_call>',
        [Called("f", "{}")],
    ),
    ('<tool_call>{"name": "g", "name": "f", "arguments": {}, "name": "g"}</tool_call>', [Called("f", "{}")]),
    ('<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', [Called("f", '{"a": 1}')]),
    ('<tool_call>{"name":"f", "a": 1}</tool_call>', ['<tool_call>{"name":"f", "a": 1}</tool_call>']),
    ('a <tool_call>{"name":"f"}\n </tool_c', ['a <tool_call>{"name":"f"}\n </tool_c']),
    ("<tool_call>oh</tool_call>", ["<tool_call>oh</tool_call>"]),
    ("<tool_call>{}</tool_call>", ["<tool_call>{}</tool_call>"]),
    ('<tool_call>oh <tool_call>{"name":"f"}</tool_call>', ["<tool_call>oh", Called("f", "{}")]),
    ('<tool_call>{"name":"f","arguments":[1]}</tool_call>', ['<tool_call>{"name":"f","arguments":[1]}</tool_call>']),
    ('<tool_call>{"name":"","arguments":{}}</tool_call>', ['<tool_call>{"name":"","arguments":{}}</tool_call>']),
    ('<tool_call>{"name":"\\ud83d"}</tool_call>', ['<tool_call>{"name":"\\ud83d"}</tool_call>']),
    ('<tool_call>{"name":"f"} more</tool_call>', ['<tool_call>{"name":"f"} more</tool_call>']),
    ('<tool_call>{"name":"f", "argum', ['<tool_call>{"name":"f", "argum']),
    ('<tool_call>{"name":"f"}', ['<tool_call>{"name":"f"}']),
    ("a <tool_c", ["a <tool_c"]),
    ('a <tool_call>{"name":"f","arguments":{"a": "b', ["a", Called("f", '{"a": "b', is_whole=False)]),
    ('<tool_call>{"name":"f","arguments":{"a": 1}', [Called("f", '{"a": 1}')]),
    ('<tool_call>{"name":"f","arguments":{}}\n</tool_', [Called("f", "{}")]),
    ('<tool_call>{"name":"f","arguments":{}}}</tool_call>', [Called("f", "{}"), "}</tool_call>"]),
    (
        '<tool_call>{"name":"f","arguments":{"a": NaN}}</tool_call> <tool_call>{"name":"g"}</tool_call>',
        [Called("f", '{"a": ', is_whole=False), "NaN}}</tool_call>", Called("g", "{}")],
    ),
    (
        '<tool_call>{"name":"f","arguments":{"a": "\n"}}</tool_call>',
        [Called("f", '{"a": "', is_whole=False), '\n"}}</tool_call>'],
    ),
]
LLAMA: list[tuple[str, list[Joined]]] = [
    ("no call", ["no call"]),
    ("later {", ["later {"]),
    ('{"name": "f", "parameters": {"a": 1}}', [Called("f", '{"a": 1}')]),
    (f'{{"name": "f", "parameters": {HARD}}}', [Called("f", HARD)]),
    ('\n<|python_tag|>{"name": "f", "parameters": {}}\n', [Called("f", "{}")]),
    ('\n<|python_tag|> {"name": "f", "age": 3}\n', ['\n<|python_tag|> {"name": "f", "age": 3}\n']),
    ("<|python_tag|><|python_tag|>{", ["<|python_tag|><|python_tag|>{"]),
    ('{"name": "f", "arguments": {"a": 1}}', [Called("f", '{"a": 1}')]),
    ('{"arguments": {"a": 1}, "name": "f"}', [Called("f", '{"a": 1}')]),
    ('{"name":"f","arguments":{"a":1},"parameters":{}}', [Called("f", '{"a":1}')]),
    ('{"name":"f","id":1,"arguments":{}}; {"name":"g","parameters":{}}', [Called("f", "{}"), Called("g", "{}")]),
    ('{"name": "f", "arguments": "{}"}', ['{"name": "f", "arguments": "{}"}']),
    ('{"name": "f", "arguments": null}', ['{"name": "f", "arguments": null}']),
    ('{"type": "function", "name": "f"}', ['{"type": "function", "name": "f"}']),
    ('{"name": "Ann"}\n', ['{"name": "Ann"}\n']),
    (' {"name": "Ann", "age": 3}\n', [' {"name": "Ann", "age": 3}\n']),
    ('{"age": {"name": 3}, "name": "Ann"}', ['{"age": {"name": 3}, "name": "Ann"}']),
    ('{"name": "Ann", "n\\u0061me ": "f"} ; {"name": "g"}', ['{"name": "Ann", "n\\u0061me ": "f"} ; {"name": "g"}']),
    ('{"name": "f"}; {"name": "g", "parameters": {}}', ['{"name": "f"}; {"name": "g", "parameters": {}}']),
    ('{"name": "Ann", "age": ', ['{"name": "Ann", "age": ']),
    ('{"name":"f","parameters":{}}; {"name":"g","parameters":{}}', [Called("f", "{}"), Called("g", "{}")]),
    ('{"name":"f","parameters":{}};{"name":"g"}\n', [Called("f", "{}"), ';{"name":"g"}\n']),
    ('{"name":"f","parameters":{}}\n;', [Called("f", "{}")]),
    ('{"temperature": 3}', ['{"temperature": 3}']),
    (' {"name": "f"} and text ', [' {"name": "f"} and text ']),
    ('{"name": "f", "parameters": {}} and text ', [Called("f", "{}"), "and text "]),
    ('{"name": "f", "parameters": {}}; {"x": 1}', [Called("f", "{}"), '; {"x": 1}']),
    ('{"name": "f", "parameters": {"a": x}}', [Called("f", '{"a": ', is_whole=False), "x}}"]),
    ('{"name": "f", "parameters": "{}"}', ['{"name": "f", "parameters": "{}"}']),
    ('{"name": "f", "par', ['{"name": "f", "par']),
    ('{"name": "f", "parameters": {"a": ', [Called("f", '{"a": ', is_whole=False)]),
    ("<|python_tag|>", ["<|python_tag|>"]),
    ("", []),
    (" ", [" "]),
]
CASES: list[tuple[Callable[[], ToolParser], str, list[Joined]]] = [
    *((HermesParser, *case) for case in HERMES),
    *((LlamaParser, *case) for case in LLAMA),
]


def told(make: Callable[[], ToolParser], pieces: Sequence[str], *, end: bool = True) -> list[Joined]:
    """Return all output for a text in pieces, with or without the output that only its end reveals."""
    parser = make()
    parts: list[Part] = [part for piece in pieces for part in parser.push(piece)]
    return joined([*parts, *parser.finish()] if end else parts)


@pytest.mark.parametrize(("make", "text", "parts"), CASES)
def test_parts(make: Callable[[], ToolParser], text: str, parts: list[Joined]) -> None:
    assert told(make, [text]) == parts
    assert told(make, list(text)) == parts
    for place in range(len(text)):
        assert told(make, [text[:place], text[place:]]) == parts


@pytest.mark.parametrize(("make", "text"), [(make, text) for make, text, _ in CASES])
def test_the_output_depends_only_on_the_text(make: Callable[[], ToolParser], text: str) -> None:
    """So a reader can resume after any part."""
    for length in range(len(text)):
        assert told(make, list(text[:length]), end=False) == told(make, [text[:length]], end=False)


@pytest.mark.parametrize(("make", "text", "parts"), CASES)
def test_output_of_a_truncated_text_is_a_prefix_of_the_wholes(
    make: Callable[[], ToolParser], text: str, parts: list[Joined]
) -> None:
    """Arguments once emitted never belong to another call, however the text continues."""
    calls = [part for part in parts if isinstance(part, Called)]
    for length in range(len(text)):
        begun = [part for part in told(make, [text[:length]]) if isinstance(part, Called)]
        for seen, whole in zip(begun, calls, strict=False):
            assert whole.arguments.startswith(seen.arguments)
            assert seen.name == whole.name
        for call in begun:
            assert not call.is_whole or isinstance(json.loads(call.arguments), dict)


def test_text_before_a_call_is_not_held_back() -> None:
    parser = HermesParser()
    assert parser.push("Let me <t") == ["Let me"]
    assert parser.push("ry") == [" <try"]
    assert LlamaParser().push("Let me") == ["Let me"]


def test_text_that_is_no_call_is_not_held_back() -> None:
    assert joined(HermesParser().push("<tool_call> is a mark")) == ["<tool_call> is a mark"]
    assert joined(LlamaParser().push('{"name": 1, ')) == ['{"name": 1, ']


@pytest.mark.parametrize(
    ("make", "head"),
    [
        (HermesParser, '<tool_call>\n{"name": "f", "arguments": '),
        (LlamaParser, '{"name": "f", "parameters": '),
        (LlamaParser, '{"name": "f", "arguments": '),
    ],
)
def test_arguments_are_emitted_as_written(make: Callable[[], ToolParser], head: str) -> None:
    parser = make()
    assert parser.push(head) == []
    assert parser.push('{"a') == [CallStart("f"), CallArguments('{"a')]
    assert parser.push('": "} ') == [CallArguments('": "} ')]
    assert parser.push('"}}\n') == [CallArguments('"}', is_last=True)]


PIECES = st.lists(
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            '{"name":"f"',
            ',"arguments":{',
            ',"parameters":{',
            ',"a":1',
            '"a":',
            "}",
            "}}",
            "\n",
            " ",
            ";",
            "a",
            "<",
            '"',
            "1",
        ]
    ),
    max_size=14,
)


@pytest.mark.parametrize("make", [HermesParser, LlamaParser])
@given(pieces=PIECES, places=st.lists(st.integers(0, 90), max_size=6))
def test_cuts_change_nothing(make: Callable[[], ToolParser], pieces: list[str], places: list[int]) -> None:
    text = "".join(pieces)
    for end in (True, False):
        assert told(make, cut(text, places), end=end) == told(make, [text], end=end)


@pytest.mark.parametrize("make", [HermesParser, LlamaParser])
@given(pieces=PIECES)
def test_only_marks_and_whitespace_are_lost(make: Callable[[], ToolParser], pieces: list[str]) -> None:
    text = "".join(pieces)
    found = told(make, [text])
    if not any(isinstance(part, Called) for part in found):
        assert found == ([text] if text else [])
    for part in found:
        shown = part if isinstance(part, str) else part.arguments if isinstance(part, Called) else ""
        assert shown in text or shown == "{}"


@pytest.mark.parametrize(
    ("make", "head", "tail", "parts"),
    [
        (HermesParser, "a", "b", [f"a{' ' * 1000}b"]),
        (HermesParser, '<tool_call>{"name": "f", "arguments": {}}', "</tool_call>", [Called("f", "{}")]),
        (HermesParser, '<tool_call>{"name": "f"}', "b", [f'<tool_call>{{"name": "f"}}{" " * 1000}b']),
        (HermesParser, '<tool_call>{"name": "f"}</tool_call>', "b", [Called("f", "{}"), "b"]),
        (LlamaParser, "", NONE.format("f"), [Called("f", "{}")]),
        (LlamaParser, "", "b", [f"{' ' * 1000}b"]),
        (LlamaParser, "<|python_tag|>", NONE.format("f"), [Called("f", "{}")]),
        (LlamaParser, NONE.format("f"), NONE.format("g"), [Called("f", "{}"), Called("g", "{}")]),
        (LlamaParser, '{"name": "f", "arguments": {}}', "b", [Called("f", "{}"), "b"]),
    ],
)
def test_whitespace_is_not_rescanned_for_each_piece(
    make: Callable[[], ToolParser], head: str, tail: str, parts: list[Joined], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spaces, "seen", 0)
    assert told(make, [head, *(Spaces(" ") for _ in range(1000)), tail]) == parts
    assert 1000 <= Spaces.seen <= 20_000
