"""The events of a response depend only on its tokens."""

from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orcastream.broker.errors import ReplyConflict
from orcastream.broker.resume import extend_checksum
from orcastream.broker.subscription import Update
from orcastream.gateway.openai.responses.behind import Behind
from orcastream.gateway.openai.responses.builder import NumberedEvent, ResponseBuilder
from orcastream.gateway.openai.responses.shape import ResponseShape
from orcastream.gateway.replies.delivered import Delivered
from orcastream.gateway.replies.reply_text import ReplyText
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Ending, Run, Started, Terminal, Usage
from orcastream.schemas.stopping import FinishReason
from orcastream.text.tokenizer import Tokenizer
from tests.gateway.conftest import TEXT

SHAPE = ResponseShape("resp_1", "tiny", 1_795_270_285)
STARTED = Started("w1", "tiny", "default", "normal", "normal 1-0", 0, 1)
CALL = '<tool_call>\n{"name": "stop", "arguments": {"at": "Köln"}}\n</tool_call>'
THOUGHT = f"<think>\nWhere?\n</think>\n\nLet me see.\n{CALL}\n{CALL}"
CALLED = [
    "output_item.added",
    "function_call_arguments.delta",
    "function_call_arguments.done",
    "output_item.done",
]


def read(
    tokenizer: Tokenizer,
    tokens: list[int],
    ends: list[int],
    *,
    text_length: int | None = None,
    error: ErrorCode | None = None,
    epochs: int = 1,
    answer_format: str = "",
    finish_reason: FinishReason = FinishReason.STOP,
) -> list[NumberedEvent]:
    """Return the events of a log read in steps up to each of `ends`, the last step with the terminal."""
    builder = ResponseBuilder(SHAPE, ReplyText(tokenizer, split="request-1"))
    ending = Ending(None if error else finish_reason, len(tokens), text_length)
    terminal = Terminal((ending,), Usage(1, len(tokens)), error=error)
    updates = [Update((0,), (0,), 1, started=replace(STARTED, answer_format=answer_format))] * epochs
    for begin, end in pairwise([0, *ends, len(tokens)]):
        is_last = end == len(tokens)
        runs = (Run(0, begin, tuple(tokens[begin:end])),) if end > begin else ()
        checksums = (extend_checksum(0, tokens[:end]),)
        updates.append(Update((end,), checksums, 1, runs, terminal=terminal if is_last else None))
    return [builder.begin(), *(event for update in updates for event in builder.take(update))]


@settings(max_examples=30)
@given(st.data())
def test_grouping_makes_no_difference(tokenizer: Tokenizer, data: st.DataObject) -> None:
    text, answer_format = data.draw(st.sampled_from([(TEXT, ""), (THOUGHT, "think+hermes")]))
    tokens = tokenizer.encode(text)
    if data.draw(st.booleans(), "ends within a character"):
        tokens = tokens[:-1] + tokenizer.encode("👍", add_special_tokens=False)[:-1]
    places = st.sets(st.integers(1, len(tokens) - 1))
    ends = sorted(data.draw(places, "seen at once"))
    error = data.draw(st.sampled_from([None, ErrorCode.EXPIRED]))
    asked: dict[str, Any] = {"error": error, "answer_format": answer_format}
    one_by_one = read(tokenizer, tokens, list(range(1, len(tokens))), **asked)
    assert read(tokenizer, tokens, ends, **asked, epochs=data.draw(st.integers(1, 3))) == one_by_one
    assert [event.number for event in one_by_one] == list(range(len(one_by_one)))


def test_thinking_text_and_calls_are_items_in_order(tokenizer: Tokenizer) -> None:
    events = read(tokenizer, tokenizer.encode(THOUGHT), [], answer_format="think+hermes")
    kinds = [kind for kind, _ in groupby(event.type.removeprefix("response.") for event in events)]
    opened = ["output_item.added", "content_part.added"]
    assert kinds == [
        *("created", "in_progress"),
        *(*opened, "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        *(*opened, "output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        *(*CALLED, *CALLED),
        "completed",
    ]
    response = events[-1].body["response"]
    thought, message, *calls = response["output"]
    assert (thought["type"], thought["content"][0]["text"]) == ("reasoning", "Where?")
    assert (message["type"], message["content"][0]["text"]) == ("message", "Let me see.")
    assert [(call["name"], call["arguments"]) for call in calls] == [("stop", '{"at": "Köln"}')] * 2
    assert calls[0]["call_id"] != calls[1]["call_id"]
    assert {item["status"] for item in response["output"]} == {"completed"}
    told = [event.body["item"] for event in events if event.type == "response.output_item.done"]
    assert told == response["output"]


def test_arguments_arrive_with_each_token_and_its_last_event_has_its_position(tokenizer: Tokenizer) -> None:
    events = read(tokenizer, tokenizer.encode(f"{CALL}{CALL}"), [], answer_format="hermes")
    pieces = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(event.body["delta"] for event in pieces) == '{"at": "Köln"}' * 2
    assert len(pieces) > 10
    places = [event.type for event in events if event.event_id is not None]
    assert len(places) == len(pieces)
    assert [kind for kind, _ in groupby(places)] == [
        *("response.function_call_arguments.delta", "response.output_item.done") * 2
    ]


def test_a_broken_call_is_incomplete_and_the_rest_is_text(tokenizer: Tokenizer) -> None:
    begun = CALL[: CALL.index("Köln")]
    for text, kinds in ((begun, ["function_call"]), (f"{begun}\n...", ["function_call", "message"])):
        events = read(tokenizer, tokenizer.encode(text), [], answer_format="hermes")
        response = events[-1].body["response"]
        assert [item["type"] for item in response["output"]] == kinds
        call, *rest = response["output"]
        assert (response["status"], call["status"], call["arguments"]) == ("completed", "incomplete", '{"at": "')
        assert [item["content"][0]["text"] for item in rest] == ["\n..."] * len(rest)
        told = [event.body["item"] for event in events if event.type == "response.output_item.done"]
        assert told == response["output"]


def test_thinking_is_counted(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(THOUGHT)
    thinking = tokenizer.encode("<think>\nWhere?")
    usage = read(tokenizer, tokens, [], answer_format="think+hermes")[-1].body["response"]["usage"]
    assert len(thinking) <= usage["output_tokens_details"]["reasoning_tokens"] < len(tokens) // 2
    plain = read(tokenizer, tokens, [], answer_format="hermes")[-1].body["response"]["usage"]
    assert plain["output_tokens_details"]["reasoning_tokens"] == 0


def test_a_length_cut_after_a_call_leaves_the_call_complete(tokenizer: Tokenizer) -> None:
    whole = CALL.index("}") + 1
    cuts = [(f"{CALL} ", "completed"), (f"{CALL} and", "incomplete"), (CALL[:whole], "completed")]
    for text, last in [*cuts, (CALL[: whole - 1], "incomplete"), (CALL[:20], "incomplete")]:
        more: dict[str, Any] = {"answer_format": "hermes", "finish_reason": FinishReason.LENGTH}
        response = read(tokenizer, tokenizer.encode(text), [], **more)[-1].body["response"]
        assert (response["status"], response["output"][-1]["status"]) == ("incomplete", last)
    assert response["output"][0]["content"][0]["text"] == CALL[:20], "a call cut before its arguments is text"


def test_text_is_cut_at_the_stop_string(tokenizer: Tokenizer) -> None:
    events = read(tokenizer, tokenizer.encode("abc END"), [], text_length=4)
    assert "".join(event.body.get("delta", "") for event in events) == "abc "
    assert events[-1].body["response"]["output"][0]["content"][0]["text"] == "abc "


def test_an_answer_without_text_has_its_item(tokenizer: Tokenizer) -> None:
    events = read(tokenizer, [], [])
    assert [event.type.removeprefix("response.") for event in events] == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]


def test_a_failed_response_contains_the_output_so_far(tokenizer: Tokenizer) -> None:
    response: dict[str, Any] = read(tokenizer, tokenizer.encode("abc"), [], error=ErrorCode.CANCELLED)[-1].body[
        "response"
    ]
    assert (response["status"], response["error"]["type"]) == ("cancelled", "cancelled")
    assert response["output"][0]["status"] == "incomplete"
    assert response["output"][0]["content"][0]["text"] == "abc"


def test_behind_passes_later_events(tokenizer: Tokenizer) -> None:
    events = read(tokenizer, tokenizer.encode(TEXT), [])
    named = next(event for event in events if event.event_id is not None)
    for behind in (Behind(number=named.number), Behind(delivered=Delivered.parse(str(named.event_id)))):
        assert [event for event in events if behind.is_new(event)] == events[named.number + 1 :]
        behind.check_reached()
    beyond = Behind(number=len(events))
    assert not any(beyond.is_new(event) for event in events)
    with pytest.raises(ReplyConflict):
        beyond.check_reached()
    other = Behind(delivered=Delivered.parse("1-00000000"))
    with pytest.raises(ReplyConflict):
        [other.is_new(event) for event in events]
