"""Calls told from text, however the text is cut."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.text.tools.call import Part, ToolCall, ToolParser
from orcastream.text.tools.hermes import HermesParser
from orcastream.text.tools.llama import LlamaParser

HERMES: list[tuple[str, list[Part]]] = [
    ("no call", ["no call"]),
    ("spaces at the end stay \n", ["spaces at the end stay \n"]),
    (
        '<tool_call>\n{"name": "f", "arguments": {"a": "</b>", "é": 1}}\n</tool_call>',
        [ToolCall("f", '{"a": "</b>", "é": 1}')],
    ),
    (
        'Let me see.\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n<tool_call>{"name":"g"}</tool_call>\n',
        ["Let me see.", ToolCall("f", "{}"), ToolCall("g", "{}")],
    ),
    (
        '<tool_call>{"name":"f"}</tool_call>\n\nand then\n',
        [ToolCall("f", "{}"), "and then"],
    ),
    ("<tool_call>oh</tool_call>", ["<tool_call>oh</tool_call>"]),
    ('<tool_call>{"name":"f","arguments":[1]}</tool_call>', ['<tool_call>{"name":"f","arguments":[1]}</tool_call>']),
    ('<tool_call>{"name":"f", "argum', ['<tool_call>{"name":"f", "argum']),
    ("a <tool_c", ["a <tool_c"]),
]
LLAMA: list[tuple[str, list[Part]]] = [
    ("no call", ["no call"]),
    ("later {", ["later {"]),
    ('{"name": "f", "parameters": {"a": 1}}', [ToolCall("f", '{"a": 1}')]),
    ('\n<|python_tag|>{"name": "f", "parameters": {}}\n', [ToolCall("f", "{}")]),
    ('{"name":"f","parameters":{}}; {"name":"g","parameters":{}}', [ToolCall("f", "{}"), ToolCall("g", "{}")]),
    ('{"temperature": 3}', ['{"temperature": 3}']),
    ('{"name": "f", "parameters": {}} and text', ['{"name": "f", "parameters": {}} and text']),
    ('{"name": "f", "par', ['{"name": "f", "par']),
    ("", []),
    (" ", [" "]),
]


def parsed(make: Callable[[], ToolParser], pieces: list[str]) -> list[Part]:
    """All parts, neighbouring texts as one."""
    parser = make()
    parts: list[Part] = []
    for part in [*(part for piece in pieces for part in parser.push(piece)), *parser.finish()]:
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    return parts


@pytest.mark.parametrize(
    ("make", "text", "parts"),
    [*((HermesParser, *case) for case in HERMES), *((LlamaParser, *case) for case in LLAMA)],
)
def test_parts(make: Callable[[], ToolParser], text: str, parts: list[Part]) -> None:
    assert parsed(make, [text]) == parts
    assert parsed(make, list(text)) == parts


def test_text_before_a_call_is_not_held_back() -> None:
    parser = HermesParser()
    assert parser.push("Let me <t") == ["Let me"]
    assert parser.push("ry") == [" <try"]
    assert LlamaParser().push("Let me") == ["Let me"]


PIECES = st.lists(
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            '{"name":"f"',
            ',"arguments":{}}',
            ',"parameters":{}}',
            "}",
            "\n",
            " ",
            ";",
            "a",
            "<",
        ]
    ),
    max_size=12,
)


@pytest.mark.parametrize("make", [HermesParser, LlamaParser])
@given(pieces=PIECES, cuts=st.lists(st.integers(0, 90), max_size=6))
def test_cuts_change_nothing(make: Callable[[], ToolParser], pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    bounds = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    cut = [text[a:b] for a, b in pairwise(bounds)]
    assert parsed(make, cut) == parsed(make, [text])
