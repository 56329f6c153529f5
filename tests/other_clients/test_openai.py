"""The official client's documented examples, unchanged except for address and model."""

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.path.site import Site

pytestmark = pytest.mark.server

MODEL = "orca-demo"
COUNT = "Count from 1 to 9"
COUNTED = "1, 2, 3, 4, 5, 6, 7, 8, 9"
Message = openai.types.chat.ChatCompletionMessageParam


@pytest.fixture
def client(service: Site) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def asking(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def test_chat(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "You are helpful."}, *asking("What is 3 + 4?")],
        temperature=0,
    )
    assert completion.choices[0].message.content == "7"
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


def test_chat_of_parts(client: openai.OpenAI) -> None:
    parts: Any = [{"type": "text", "text": "What is "}, {"type": "text", "text": "3 + 4?"}]
    completion = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": parts}],
        temperature=0,
    )
    assert completion.choices[0].message.content == "7"


def test_streaming(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=asking(COUNT), temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == COUNTED
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 9


def test_streaming_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=asking(COUNT), temperature=0) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        assert stream.get_final_completion().choices[0].finish_reason == "stop"
    assert "".join(pieces) == COUNTED


async def test_async(service: Site) -> None:
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=asking(COUNT), temperature=0, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(pieces) == COUNTED


class Order(pydantic.BaseModel):
    """Orders a dish."""

    dish: Literal["soup", "pie"]
    portions: Literal[1, 2, 3]


def test_tools(client: openai.OpenAI) -> None:
    """A call, and an answer after its result; messages are sent back unchanged."""
    tools = [openai.pydantic_function_tool(Order, name="order")]
    messages: list[Any] = asking("What is 3 + 4?")
    ask = partial(client.chat.completions.create, model=MODEL, tools=tools, temperature=2)
    (choice,) = ask(messages=messages, tool_choice="required", parallel_tool_calls=False).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    Order.model_validate_json(call.function.arguments)
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "It comes."}]
    assert ask(messages=messages, max_tokens=8).choices[0].message.role == "assistant"


def test_parsed_tools(client: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(Order, name="order")]
    ask: dict[str, Any] = {
        "model": MODEL,
        "messages": asking("Order"),
        "tools": tools,
        "tool_choice": "required",
        "temperature": 2,
    }
    parsed: Any = client.chat.completions.parse(**ask, parallel_tool_calls=False)
    (call,) = parsed.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Order)
    with client.chat.completions.stream(**ask, parallel_tool_calls=False) as stream:
        events = [event for event in stream if event.type.startswith("tool_calls.function.arguments.")]
        final = stream.get_final_completion().choices[0]
    *pieces, done = events
    assert done.parsed_arguments == final.message.tool_calls[0].function.parsed_arguments
    assert len(pieces) > 3
    assert "".join(event.arguments_delta for event in pieces) == done.arguments
    assert [event.arguments for event in pieces] == [done.arguments[: len(event.arguments)] for event in pieces]
    assert final.finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": final.message.tool_calls[0].id, "content": "It comes."}
    again = [*asking("Order"), final.message, result]
    answer: Any = client.chat.completions.create(**{**ask, "messages": again, "tool_choice": "none"}, max_tokens=8)
    assert answer.choices[0].message.tool_calls is None


def test_completion(client: openai.OpenAI) -> None:
    completion = client.completions.create(model=MODEL, prompt="What is 3 + 4?", max_tokens=7, temperature=0)
    assert completion.choices[0].text.strip() == "7"


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echo(client: openai.OpenAI, max_tokens: int) -> None:
    """As requested by tools that score texts, whole and streamed."""
    prompt = "What is 3 + 4?"
    ask = partial(client.completions.create, model=MODEL, prompt=prompt, echo=True, logprobs=2, temperature=0)
    completion = ask(max_tokens=max_tokens)
    (choice,), usage = completion.choices, completion.usage
    assert usage is not None
    assert usage.completion_tokens == max_tokens
    assert choice.finish_reason == "length"
    assert choice.text.startswith(prompt)
    assert (choice.text == prompt) == (max_tokens == 0)
    told = choice.logprobs
    assert told is not None
    names, values, likeliest = told.tokens or [], told.token_logprobs or [], told.top_logprobs or []
    assert len(names) == len(values) == len(likeliest) == usage.prompt_tokens + max_tokens
    assert "".join(names) == choice.text
    assert (values[0], likeliest[0]) == (None, None)
    assert all(value <= 0 for value in values[1:])
    assert {len(others) for others in likeliest[1:]} <= {2, 3}
    stream: Any = ask(max_tokens=max_tokens, stream=True)
    chunks = [chunk.choices[0] for chunk in stream]
    assert "".join(chunk.text for chunk in chunks) == choice.text
    parts = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    assert [name for part in parts for name in part.tokens or []] == names
    assert [place for part in parts for place in part.text_offset or []] == told.text_offset
    streamed = [value for part in parts for value in part.token_logprobs or []]
    assert streamed[0] is None
    assert streamed[1:] == pytest.approx(values[1:], abs=1e-3)
    assert chunks[-1].finish_reason == "length"


def test_batch(client: openai.OpenAI) -> None:
    body = {"model": MODEL, "messages": asking("What is 3 + 4?"), "temperature": 0}
    line = {"custom_id": "sum", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"of": "sums"}
    )
    while (batch := client.batches.retrieve(batch.id)).status in ("validating", "in_progress", "finalizing"):
        time.sleep(0.05)
    assert (batch.status, batch.errors) == ("completed", None)
    assert batch.id in [one.id for one in client.batches.list(limit=1)]
    [result] = client.files.content(batch.output_file_id or "").text.splitlines()
    assert json.loads(result)["response"]["body"]["choices"][0]["message"]["content"] == "7"
    assert {one.purpose for one in client.files.list()} == {"batch", "batch_output"}
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_are_the_clients_known_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="no-such-model", messages=asking("x"))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=MODEL, messages=asking("x"), temperature=-1)
    assert wrong.value.param == "temperature"


def test_a_response(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="What is 3 + 4?", temperature=0)
    assert response.output_text == "7"
    assert response.status == "completed"
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_the_events_of_a_response(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model=MODEL, input=COUNT, temperature=0, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == COUNTED
    assert events[-1].type == "response.completed"


def test_the_helper_for_the_events_of_a_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=COUNT, temperature=0) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert stream.get_final_response().output_text == COUNTED
    assert "".join(pieces) == COUNTED


def test_a_parsed_response(client: openai.OpenAI) -> None:
    class Sum(pydantic.BaseModel):
        value: int

    response = client.responses.parse(model=MODEL, input="What is 3 + 4?", temperature=0, text_format=Sum)
    assert isinstance(response.output_parsed, Sum)
    with client.responses.stream(model=MODEL, input="What is 3 + 4?", temperature=0, text_format=Sum) as stream:
        assert stream.until_done().get_final_response().output_parsed == response.output_parsed


def test_tools_of_responses(client: openai.OpenAI) -> None:
    """A call, and answers after its result; items are sent back unchanged, or referenced by the response's id."""
    tools = [openai.pydantic_function_tool(Order, name="order")["function"]]
    asked: dict[str, Any] = {"model": MODEL, "tools": [{"type": "function", **tool} for tool in tools]}
    required = {**asked, "tool_choice": "required", "parallel_tool_calls": False, "temperature": 2}
    response = client.responses.create(**required, input="What is 3 + 4?")
    (call,) = response.output
    assert call.type == "function_call"
    Order.model_validate_json(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It comes."}
    asked |= {"tool_choice": "none", "max_output_tokens": 8, "temperature": 0}
    items = [*asking("What is 3 + 4?"), *response.output, result]
    by_hand = client.responses.create(**asked, input=items)
    by_id = client.responses.create(**asked, input=[result], previous_response_id=response.id)
    assert by_hand.output_text == by_id.output_text


def test_parsed_tools_of_responses(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": "Order", "tool_choice": "required", "parallel_tool_calls": False}
    asked |= {"tools": [openai.pydantic_function_tool(Order, name="order")], "temperature": 2}
    (parsed,) = client.responses.parse(**asked).output
    assert parsed.type == "function_call"
    assert isinstance(parsed.parsed_arguments, Order)
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.type for item in done] == ["function_call"]
    pieces = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(pieces) > 3
    assert "".join(event.delta for event in pieces) == final.output[0].arguments  # type: ignore[union-attr]
    assert pieces[-1].snapshot == final.output[0].arguments  # type: ignore[union-attr]
    assert isinstance(final.output[0].parsed_arguments, Order)  # type: ignore[union-attr]
    result = {"type": "function_call_output", "call_id": final.output[0].call_id, "output": "It comes."}  # type: ignore[union-attr]
    asked |= {"input": [*asking("Order"), *final.output, result], "tool_choice": "none", "max_output_tokens": 8}
    assert [item.type for item in client.responses.parse(**asked).output] == ["message"]


def test_a_response_in_the_background(client: openai.OpenAI) -> None:
    queued = client.responses.create(model=MODEL, input=COUNT, temperature=0, background=True)
    assert queued.status == "queued"
    events = list(client.responses.retrieve(queued.id, stream=True))
    assert events[-1].type == "response.completed"
    assert client.responses.retrieve(queued.id).output_text == COUNTED
    rest = list(client.responses.retrieve(queued.id, stream=True, starting_after=7))
    assert [event.to_dict() for event in rest] == [event.to_dict() for event in events[8:]]


def test_a_conversation_of_responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="What is 3 + 4?", temperature=0)
    second = client.responses.create(model=MODEL, input="What is 2 + 2?", previous_response_id=first.id)
    items = client.responses.input_items.list(second.id, order="asc").data
    assert [item.content[0].text for item in items] == ["What is 3 + 4?", "7", "What is 2 + 2?"]  # type: ignore[union-attr]


def test_a_response_is_cancelled_and_deleted(client: openai.OpenAI) -> None:
    queued = client.responses.create(model=MODEL, input="Count from 1 to 99", temperature=0, background=True)
    assert client.responses.cancel(queued.id).status in ("cancelled", "completed")
    client.responses.delete(queued.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(queued.id)
