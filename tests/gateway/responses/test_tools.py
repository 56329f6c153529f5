"""Function tools and thinking in responses, through the official client."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from orcastream.demo import MODEL_DIR
from orcastream.schemas.stopping import FinishReason
from orcastream.text.tokenizer import Tokenizer
from tests.gateway.conftest import MODEL, Served, Stage
from tests.gateway.openai.test_tools import CITY, DEEP, HALVES, ONE, THOUGHT
from tests.gateway.responses.test_responses import sent
from tests.gateway.scripted_worker import Answer

WEATHER = {"type": "function", "name": "weather", "description": "Tells it.", "parameters": CITY, "strict": True}
STOP = {"type": "function", "name": "stop"}
BODY: dict[str, Any] = {"model": MODEL, "input": "hi", "tools": [WEATHER, STOP]}


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return Tokenizer.load(str(MODEL_DIR))


async def gateway(stage: Stage, **changes: Any) -> Served:
    return await stage.gateway(model=str(MODEL_DIR), reasoning_parser="think", **changes)


def thought(demo: Tokenizer, **more: Any) -> Answer:
    return Answer([demo.encode(THOUGHT, add_special_tokens=False)], **more)


async def test_the_request_and_its_output(stage: Stage, demo: Tokenizer) -> None:
    worker = await stage.worker(thought(demo))
    client = (await gateway(stage)).openai()
    chosen: Any = {"type": "function", "name": "weather"}
    response = await client.responses.create(**BODY, tool_choice=chosen, parallel_tool_calls=False)
    Response.model_validate(response.model_dump())
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output_text == "Let me see."
    assert response.tool_choice.model_dump(exclude_unset=True) == chosen  # type: ignore[union-attr]
    assert response.parallel_tool_calls is False
    told = [tool.model_dump(exclude_unset=True) for tool in response.tools]
    assert told == [WEATHER, {**STOP, "description": None, "parameters": None, "strict": None}]
    assert response.usage is not None
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens
    payload = worker.requests[0].payload
    assert payload.answer_format == "think+hermes"
    assert payload.constraint is not None
    assert "weather" in str(payload.constraint.grammar)
    assert '\\"stop\\"' not in str(payload.constraint.grammar)
    assert '"description": "Tells it."' in demo.decode(payload.prompt)
    assert (await client.responses.retrieve(response.id)).model_dump() == response.model_dump()


async def test_an_output_can_be_sent_back_by_hand_or_by_id(stage: Stage, demo: Tokenizer) -> None:
    worker = await stage.worker(thought(demo))
    served, other = await gateway(stage), await gateway(stage)
    client = served.openai()
    first = await client.responses.create(**BODY)
    calls = [item for item in first.output if item.type == "function_call"]
    results: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "mild"} for call in calls]
    items: Any = [{"role": "user", "content": "hi"}, *first.output, *results]
    await client.responses.create(**{**BODY, "input": items})
    by_id = await other.openai().responses.create(
        **{**BODY, "input": results}, previous_response_id=first.id, tool_choice="auto"
    )
    by_hand, went_on = [demo.decode(r.payload.prompt, skip_special_tokens=False) for r in worker.requests[1:]]
    assert by_hand == went_on
    assert 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>' in went_on
    assert went_on.count("<tool_response>\nmild\n</tool_response>") == 2
    listed = await client.responses.input_items.list(by_id.id, order="asc")
    assert [item.type for item in listed.data[1:]] == [
        *("reasoning", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output"),
    ]
    assert len({item.id for item in listed.data}) == 7


async def test_a_conversation_continues_after_a_truncated_call(stage: Stage, demo: Tokenizer) -> None:
    text = f"Let me see.\n{ONE}"
    cut = demo.encode(text[: text.index("Köln")], add_special_tokens=False)
    worker = await stage.worker(Answer([cut], finish_reason=FinishReason.LENGTH))
    client = (await gateway(stage)).openai()
    first = await client.responses.create(**BODY)
    message, call = first.output
    assert (first.status, message.type, call.type) == ("incomplete", "message", "function_call")
    assert (call.status, call.arguments) == ("incomplete", '{"city": "')  # type: ignore[union-attr]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "mild"}  # type: ignore[union-attr]
    more: Any = [result, {"role": "user", "content": "go on"}]
    await client.responses.create(**{**BODY, "input": more}, previous_response_id=first.id)
    for back in (call, call.model_dump(exclude={"id", "status"}, exclude_none=True)):
        items: Any = [{"role": "user", "content": "hi"}, message, back, *more]
        await client.responses.create(**{**BODY, "input": items})
    by_id, *by_hand = [demo.decode(r.payload.prompt, skip_special_tokens=False) for r in worker.requests[1:]]
    assert by_hand == [by_id] * 2
    assert "Let me see." in by_id
    assert '{"city": "' not in by_id
    assert "mild" not in by_id


@pytest.mark.parametrize("arguments", [DEEP, HALVES])
async def test_every_call_can_be_sent_back(stage: Stage, demo: Tokenizer, arguments: str) -> None:
    text = f'Hm.<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>{ONE}'
    worker = await stage.worker(Answer([demo.encode(text, add_special_tokens=False)]))
    client = (await gateway(stage)).openai()
    first = await client.responses.create(**BODY)
    calls = [item for item in first.output if item.type == "function_call"]
    assert (calls[0].status, calls[0].arguments) == ("completed", arguments)
    results: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "mild"} for call in calls]
    await client.responses.create(**{**BODY, "input": results}, previous_response_id=first.id)
    items: Any = [{"role": "user", "content": "hi"}, *first.output, *results]
    await client.responses.create(**{**BODY, "input": items})
    by_id, by_hand = [demo.decode(r.payload.prompt, skip_special_tokens=False) for r in worker.requests[1:]]
    assert by_id == by_hand
    assert by_id.count("<tool_response>\nmild\n</tool_response>") == (1 if arguments == DEEP else 2)


async def test_resuming_after_any_event_of_calls(stage: Stage, demo: Tokenizer) -> None:
    """At a gateway that would parse them differently, and never saw the request."""
    await stage.worker(thought(demo, group=3))
    live = sent(await (await gateway(stage)).http().post("/v1/responses", json={**BODY, "stream": True}))
    other = (await stage.gateway(model=str(MODEL_DIR), reasoning_parser="none", tool_parser="none")).http()
    assert [event["sequence_number"] for event in live] == list(range(len(live)))
    response_id = live[0]["response"]["id"]
    for number in range(len(live)):
        params: dict[str, Any] = {"stream": "true", "starting_after": number}
        assert sent(await other.get(f"/v1/responses/{response_id}", params=params)) == live[number + 1 :]
    places = [event for event in live if "event_id" in event]
    assert {event["type"] for event in places} == {
        *("response.reasoning_text.delta", "response.output_text.delta"),
        *("response.function_call_arguments.delta", "response.output_item.done"),
    }
    for event in places:
        header = {"Last-Event-ID": event["event_id"]}
        read = sent(await other.get(f"/v1/requests/{response_id}/events", headers=header))
        assert read == live[event["sequence_number"] + 1 :]


async def test_log_probabilities_cover_the_text(stage: Stage, demo: Tokenizer) -> None:
    worker = await stage.worker(thought(demo, logprobs=True))
    client = (await gateway(stage)).openai()
    response = await client.responses.create(**BODY, include=["message.output_text.logprobs"])
    message = response.output[1]
    assert message.type == "message"
    told = "".join(one.token for one in message.content[0].logprobs)  # type: ignore[union-attr]
    assert told.strip().removeprefix("</think>").strip() == "Let me see."
    assert len(worker.requests) == 1


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (
            {"tools": [STOP, {**WEATHER, "parameters": {"properties": {"x": {"type": "array", "uniqueItems": True}}}}]},
            422,
            "tools.1.parameters.properties.x",
        ),
        ({"tool_choice": {"type": "function", "name": "other"}}, 400, "tool_choice.name"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]}},
            400,
            "tool_choice.tools.0.name",
        ),
    ],
)
async def test_errors_name_parameters_as_written(stage: Stage, body: dict[str, Any], status: int, param: str) -> None:
    await stage.worker()
    refused = await (await gateway(stage)).http().post("/v1/responses", json={**BODY, **body})
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param), refused.text


async def test_a_model_without_calls_refuses_them(stage: Stage) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    with pytest.raises(openai.BadRequestError) as tools:
        await client.responses.create(**BODY)
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps({})}
    with pytest.raises(openai.BadRequestError) as calls:
        await client.responses.create(model=MODEL, input=[call])  # type: ignore[list-item]
    assert (tools.value.param, calls.value.param) == ("tools", "input")
    response = await client.responses.create(**BODY, tool_choice="none")
    assert (response.status, response.tool_choice) == ("completed", "none")
