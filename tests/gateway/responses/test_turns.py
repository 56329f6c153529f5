"""Items of a conversation become the messages that templates accept."""

from typing import Any

import pytest

from orcastream.gateway.openai.cut_calls import without_cut_calls
from orcastream.gateway.openai.responses.items import ResponseInput, read_input
from orcastream.schemas.errors import InvalidRequest

QUESTION = {"role": "user", "content": "hi"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Where?"}]}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I see."}]}


def call(number: int, arguments: str = '{"a": 1}') -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{number}", "name": "f", "arguments": arguments}


def result(number: int) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": f"{number}"}


def messages(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return without_cut_calls(ResponseInput.of(read_input(list(items)), None, {}).messages)


def told(number: int, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    function = {"name": "f", "arguments": {"a": 1} if arguments is None else arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def test_consecutive_assistant_items_are_one_message() -> None:
    assert messages(QUESTION, THOUGHT, SAID, call(1), call(2, ""), result(1), result(2), SAID) == [
        QUESTION,
        {
            "role": "assistant",
            "content": "I see.",
            "reasoning_content": "Where?",
            "tool_calls": [told(1), told(2, {})],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
        {"role": "tool", "tool_call_id": "call_2", "content": "2"},
        {"role": "assistant", "content": "I see."},
    ]


def test_an_item_that_cannot_follow_begins_the_next_message() -> None:
    assert [sorted(message) for message in messages(SAID, SAID, call(1), SAID, THOUGHT, call(2))] == [
        ["content", "role"],
        ["content", "role", "tool_calls"],
        ["content", "role"],
        ["content", "reasoning_content", "role", "tool_calls"],
    ]


@pytest.mark.parametrize("status", ["incomplete", "in_progress", "completed", None])
@pytest.mark.parametrize("arguments", ['{"a": "x', "[]", "{" + '"a": [' * 5000, '{"a": ' * 65 + "1" + "}" * 65])
def test_a_truncated_call_and_its_result_are_not_shown(status: str | None, arguments: str) -> None:
    unfinished = {**call(1, arguments), "status": status}
    assert messages(QUESTION, unfinished, QUESTION) == [QUESTION, QUESTION]
    assert messages(QUESTION, THOUGHT, unfinished, result(1), QUESTION) == [QUESTION, QUESTION]
    assert messages(THOUGHT, unfinished, SAID) == messages(THOUGHT, SAID)
    assert messages(SAID, unfinished, call(2), result(2), result(1)) == messages(SAID, call(2), result(2))
    assert messages(call(2), unfinished, result(1), result(2)) == messages(call(2), result(2))
    assert messages(unfinished, result(1), call(1), result(1)) == messages(call(1), result(1)), "called again"
    assert read_input([unfinished])[0]["status"] == "incomplete"


def test_an_incomplete_call_is_dropped_however_much_of_it_exists() -> None:
    assert messages(SAID, {**call(1), "status": "incomplete"}, result(1)) == messages(SAID)


@pytest.mark.parametrize("status", ["incomplete", None])
@pytest.mark.parametrize("arguments", [None, {"a": 1}, "\ud83d"])
def test_non_string_arguments_are_refused_by_name(status: str | None, arguments: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages(QUESTION, {**call(1), "arguments": arguments, "status": status})
    assert caught.value.field == "input.1.arguments"


def test_calls_alone_have_no_text_and_thinking_may_have_none() -> None:
    assert messages(call(1)) == [{"role": "assistant", "content": "", "tool_calls": [told(1)]}]
    untold = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None}
    assert messages(untold, SAID) == [{"role": "assistant", "content": "I see."}]


def test_a_result_with_parts_becomes_their_text() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages({**result(1), "output": parts})[0]["content"] == "ab"


def test_item_ids_show_their_kind() -> None:
    items = read_input([QUESTION, {**THOUGHT, "id": None}, {**call(1), "id": "fc_own"}, call(2), result(1)])
    named = ResponseInput.of(items, None, {}).with_ids("x_in").items
    assert [item["id"] for item in named] == ["msg_x_in0", "rs_x_in1", "fc_own", "fc_x_in3", "fco_x_in4"]
