"""Responses through the official client, whole, streamed and in the background."""

import json
from contextlib import suppress
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent

from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.stopping import FinishReason
from tests.gateway.conftest import MODEL, TEXT, Served, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate

KEYS = {"a": "ada", "b": "bob"}
EVENTS = pydantic.TypeAdapter[ResponseStreamEvent](ResponseStreamEvent)


def sent(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the events of a stream, each checked against OpenAI's types."""
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    for event in events:
        EVENTS.validate_python(event)
    return events


async def status_of(served: Served, response_id: str) -> str | None:
    return (await served.openai().responses.retrieve(response_id)).status


async def test_a_whole_response(stage: Stage) -> None:
    worker = await stage.worker()
    client = (await stage.gateway()).openai()
    response = await client.responses.create(
        model=MODEL,
        input="hi",
        instructions="Be brief.",
        max_output_tokens=100,
        metadata={"batch": "7"},
        temperature=0.5,
        user="u-1",
    )
    Response.model_validate(response.model_dump())
    assert response.output_text == TEXT
    assert response.id.startswith("resp_")
    assert (response.status, response.object, response.model) == ("completed", "response", MODEL)
    assert response.incomplete_details is response.error is None
    assert (response.instructions, response.metadata, response.temperature) == ("Be brief.", {"batch": "7"}, 0.5)
    assert (response.max_output_tokens, response.user, response.to_dict()["store"]) == (100, "u-1", True)
    request = worker.requests[0]
    assert (request.id, request.payload.max_tokens, request.payload.temperature) == (response.id, 100, 0.5)
    assert response.usage is not None
    assert response.usage.input_tokens == len(request.payload.prompt)
    assert response.usage.output_tokens == len(stage.tokenizer.encode(TEXT))
    prompt = stage.tokenizer.decode(request.payload.prompt, skip_special_tokens=False)
    assert prompt == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert (await client.responses.retrieve(response.id)).model_dump() == response.model_dump()


async def test_messages_with_parts_and_an_answer_sent_back(stage: Stage) -> None:
    worker = await stage.worker("ok")
    client = (await stage.gateway()).openai()
    parts: Any = [
        {"role": "developer", "content": "x"},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}},
                {"type": "input_text", "text": "b"},
            ],
        },
    ]
    first = await client.responses.create(model=MODEL, input=parts)
    again: Any = [*parts, *first.output, {"role": "user", "content": "c"}]
    await client.responses.create(model=MODEL, input=again)
    prompt = stage.tokenizer.decode(worker.requests[1].payload.prompt, skip_special_tokens=False)
    roles = [part.split("\n")[0] for part in prompt.split("<|im_start|>")[1:]]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert "user\nab<|im_end|>" in prompt
    assert "assistant\nok<|im_end|>" in prompt


async def test_the_events_of_a_stream(stage: Stage) -> None:
    await stage.worker()
    http = (await stage.gateway()).http()
    events = sent(await http.post("/v1/responses", json={"model": MODEL, "input": "hi", "stream": True}))
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[4:-4] == ["output_text.delta"] * len(deltas)
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(delta["delta"] for delta in deltas) == TEXT == events[-4]["text"]
    assert len(deltas) > 10
    assert events[0]["response"]["status"] == "in_progress"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == TEXT


async def test_the_events_are_the_same_however_the_log_was_written_and_read(stage: Stage) -> None:
    """One by one as they arrive, in groups, and all at once after the end, at another gateway."""
    ids = stage.tokenizer.encode(TEXT)
    await stage.worker(lambda request: Answer([ids], group=5 if request.id.endswith("many") else 1))
    first, second = await stage.gateway(), await stage.gateway()
    seen = []
    for name in ("one", "many"):
        body = {"model": MODEL, "input": "hi", "stream": True, "request_id": name}
        live = sent(await first.http().post("/v1/responses", json=body))
        for served in (first, second):
            read = sent(await served.http().get(f"/v1/responses/resp_{name}", params={"stream": "true"}))
            assert read == live
        seen.append([(e["sequence_number"], e["type"], e.get("delta")) for e in live])
    assert seen[0] == seen[1]


async def test_resuming_after_any_event(stage: Stage) -> None:
    await stage.worker("a👍b")
    served = await stage.gateway()
    http = served.http()
    live = sent(await http.post("/v1/responses", json={"model": MODEL, "input": "hi", "stream": True}))
    response_id = live[0]["response"]["id"]
    for number in range(len(live)):
        params: dict[str, Any] = {"stream": "true", "starting_after": number}
        assert sent(await http.get(f"/v1/responses/{response_id}", params=params)) == live[number + 1 :]
    for event in live:
        if "event_id" in event:
            header = {"Last-Event-ID": event["event_id"]}
            read = sent(await http.get(f"/v1/requests/{response_id}/events", headers=header))
            assert read == live[event["sequence_number"] + 1 :]
    beyond = sent(await http.get(f"/v1/responses/{response_id}", params={"stream": "true", "starting_after": 999}))
    assert [event["code"] for event in beyond] == ["reply_conflict"]
    other = await http.get(f"/v1/requests/{response_id}/events", headers={"Last-Event-ID": "1-00000000"})
    assert sent(other)[-1]["code"] == "reply_conflict"


async def test_a_response_cut_by_its_length_is_incomplete(stage: Stage) -> None:
    await stage.worker(Answer([stage.tokenizer.encode("abc")], finish_reason=FinishReason.LENGTH))
    client = (await stage.gateway()).openai()
    response = await client.responses.create(model=MODEL, input="hi", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"  # type: ignore[union-attr]
    events = [e async for e in await client.responses.create(model=MODEL, input="hi", stream=True)]
    assert events[-1].type == "response.incomplete"


async def test_a_response_that_fails(stage: Stage) -> None:
    await stage.worker(lambda _: Answer([stage.tokenizer.encode("abc")], error=ErrorCode.ENGINE_ERROR))
    served = await stage.gateway()
    client = served.openai()
    with pytest.raises(openai.InternalServerError) as failed:
        await client.responses.create(model=MODEL, input="hi", extra_headers={"Idempotency-Key": "f"})
    assert failed.value.code == "engine_error"
    kept = await client.responses.retrieve("resp_f")
    assert kept.status == "failed"
    assert kept.error is not None
    assert (kept.error.code, kept.error.type) == ("server_error", "engine_error")
    events = sent(await served.http().post("/v1/responses", json={"model": MODEL, "input": "hi", "stream": True}))
    assert [e["type"] for e in events] == ["response.created", "response.in_progress", "response.failed"]
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="hi", previous_response_id="resp_f")
    assert refused.value.param == "previous_response_id"


async def test_a_background_response(stage: Stage) -> None:
    gate = Gate(0)
    worker = await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate), name="w1")
    worker_requests = worker.requests
    served, other = await stage.gateway(), await stage.gateway()
    client = served.openai()
    queued = await client.responses.create(model=MODEL, input="hi", background=True)
    assert (queued.status, queued.output, queued.background) == ("queued", [], True)

    async def is_in_progress() -> bool:
        return await status_of(other, queued.id) == "in_progress"

    await eventually(is_in_progress)
    assert worker_requests[0].payload.on_disconnect == "continue"
    await gate.open(3)

    async def has_text() -> str:
        return (await other.openai().responses.retrieve(queued.id)).output_text

    assert TEXT.startswith(await eventually(has_text))
    stream = await other.openai().responses.retrieve(queued.id, stream=True)
    await gate.open()
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))  # type: ignore[union-attr]
    done = await other.openai().responses.retrieve(queued.id)
    assert (done.status, done.output_text) == ("completed", TEXT)
    assert events[-1].response.model_dump() == done.model_dump()  # type: ignore[union-attr]
    rest = await client.responses.retrieve(queued.id, stream=True, starting_after=5)
    assert [event.model_dump() async for event in rest] == [event.model_dump() for event in events[6:]]


async def test_a_repeated_key_returns_the_background_response(stage: Stage) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    key = {"Idempotency-Key": "again"}

    async def ask() -> bool:
        response = await client.responses.create(model=MODEL, input="hi", background=True, extra_headers=key)
        return response.status == "completed" and response.output_text == TEXT

    await eventually(ask)


async def test_cancelling_a_running_response(stage: Stage) -> None:
    gate = Gate(1)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served, other = await stage.gateway(), await stage.gateway()
    queued = await served.openai().responses.create(model=MODEL, input="hi", background=True)
    await gate.reached(1)
    cancelled = await other.openai().responses.cancel(queued.id)
    assert cancelled.status == "cancelled"
    assert await status_of(served, queued.id) == "cancelled"
    events = [e async for e in await served.openai().responses.retrieve(queued.id, stream=True)]
    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "cancelled"
    assert (await served.openai().responses.cancel(queued.id)).status == "cancelled"


async def test_cancelling_a_waiting_response(stage: Stage) -> None:
    served = await stage.gateway(require_worker=False)
    queued = await served.openai().responses.create(model=MODEL, input="hi", background=True)
    assert await status_of(served, queued.id) == "queued"
    assert (await served.openai().responses.cancel(queued.id)).status == "cancelled"


async def test_deleting_a_response(stage: Stage) -> None:
    await stage.worker()
    served = await stage.gateway()
    client = served.openai()
    response = await client.responses.create(model=MODEL, input="hi")
    link = await served.gateway.redis.get()

    async def is_acknowledged() -> bool:
        return await link.call("XLEN", stage.keys.requests("normal")) == 0

    await eventually(is_acknowledged)
    await client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model=MODEL, input="x", previous_response_id=response.id)
    keys = [stage.keys.response(response.id), stage.keys.reply(response.id), stage.keys.responses("default")]
    assert await link.call("EXISTS", *keys) == 0


async def test_an_unstored_response_is_not_found_and_leaves_nothing(stage: Stage) -> None:
    await stage.worker()
    served = await stage.gateway()
    client = served.openai()
    response = await client.responses.create(model=MODEL, input="hi", store=False)
    assert response.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)
    link = await served.gateway.redis.get()
    assert await link.call("EXISTS", stage.keys.response(response.id)) == 0
    events = sent(await served.http().get(f"/v1/requests/{response.id}/events"))
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == TEXT


async def test_a_repeated_id_returns_the_first_response(stage: Stage) -> None:
    worker = await stage.worker()
    http = (await stage.gateway()).http()

    async def ask(**changes: Any) -> dict[str, Any]:
        body = {"model": MODEL, "input": "hi", "temperature": 0.5, **changes}
        answer = await http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    unstored = await ask(request_id="u", store=False)
    again = await ask(request_id="u", store=False)
    assert abs(again.pop("created_at") - unstored.pop("created_at")) <= 1
    assert again.pop("completed_at") is unstored.pop("completed_at") is None
    assert again == unstored
    for other in ({"store": True}, {"background": True}, {"store": True, "input": "something else"}):
        told = await ask(request_id="u", **other)
        assert (told["store"], told["background"], told["status"]) == (False, False, "completed")
        assert told["output"] == unstored["output"]
    assert (await http.get("/v1/responses/resp_u")).status_code == 404
    stored = await ask(request_id="s")
    assert stored == await ask(request_id="s", store=False, temperature=1)
    assert len(worker.requests) == 2


async def test_a_conversation_continues(stage: Stage) -> None:
    worker = await stage.worker("ok")
    served, other = await stage.gateway(), await stage.gateway()
    first = await served.openai().responses.create(model=MODEL, input="one", instructions="Never again.")
    second = await other.openai().responses.create(model=MODEL, input="two", previous_response_id=first.id)
    third = await served.openai().responses.create(model=MODEL, input="three", previous_response_id=second.id)
    assert third.previous_response_id == second.id
    prompt = stage.tokenizer.decode(worker.requests[2].payload.prompt, skip_special_tokens=False)
    said = [part.removesuffix("<|im_end|>\n") for part in prompt.split("<|im_start|>")[1:]]
    assert said == ["user\none", "assistant\nok", "user\ntwo", "assistant\nok", "user\nthree", "assistant\n"]


async def test_items_of_stored_responses_may_be_sent_by_their_ids(stage: Stage) -> None:
    """As the AI SDK of Vercel does from the second turn on."""
    worker = await stage.worker("ok")
    client = (await stage.gateway()).openai()
    given: Any = []
    for text in ("one", "two", "three"):
        given.append({"role": "user", "content": text})
        response = await client.responses.create(model=MODEL, input=given)
        given.append({"type": "item_reference", "id": response.output[0].id})
    prompt = stage.tokenizer.decode(worker.requests[2].payload.prompt, skip_special_tokens=False)
    said = [part.removesuffix("<|im_end|>\n") for part in prompt.split("<|im_start|>")[1:]]
    assert said == ["user\none", "assistant\nok", "user\ntwo", "assistant\nok", "user\nthree", "assistant\n"]
    listed = [item async for item in client.responses.input_items.list(response.id, order="asc")]
    assert [item.id for item in listed[1::2]] == [given[1]["id"], given[3]["id"]]
    unstored = await client.responses.create(model=MODEL, input="one", store=False)
    with pytest.raises(openai.NotFoundError, match=r"Item with id .* not found"):
        await client.responses.create(model=MODEL, input=[{"type": "item_reference", "id": unstored.output[0].id}])


async def test_input_items(stage: Stage) -> None:
    await stage.worker("ok")
    client = (await stage.gateway()).openai()
    first = await client.responses.create(model=MODEL, input="one")
    second = await client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    listed = await client.responses.input_items.list(second.id, order="asc")
    said = [(item.role, item.content[0].text) for item in listed.data]  # type: ignore[union-attr]
    assert said == [("user", "one"), ("assistant", "ok"), ("user", "two")]
    assert len({item.id for item in listed.data}) == 3
    page = await client.responses.input_items.list(second.id, limit=2)
    assert [item.content[0].text async for item in page] == ["two", "ok", "one"]  # type: ignore[union-attr]
    with pytest.raises(openai.BadRequestError):
        await client.responses.input_items.list(second.id, after="nothing")


@pytest.mark.parametrize(
    "given", [("m1", "m2", "m1"), ("m1", "m1", "m1", "msg_mine_in1"), (None, "msg_mine_in0", None)]
)
async def test_pages_of_items_that_share_an_id_come_to_an_end(stage: Stage, given: tuple[str | None, ...]) -> None:
    """The first item keeps the id."""
    await stage.worker("ok")
    client = (await stage.gateway()).openai()
    items: Any = [
        {"type": "message", "role": "user", "content": str(number), **({"id": own} if own else {})}
        for number, own in enumerate(given)
    ]
    await client.responses.create(model=MODEL, input=items, extra_body={"request_id": "mine"})
    page = await client.responses.input_items.list("resp_mine", limit=1, order="asc")
    found = {}
    async for item in page:
        assert item.id not in found
        found[item.id] = item.content[0].text  # type: ignore[union-attr]  # all are messages
    assert list(found.values()) == [str(number) for number in range(len(given))]
    assert all(found[own] == str(given.index(own)) for own in given if own)


async def test_a_stored_item_that_is_sent_again_gets_its_own_id(stage: Stage) -> None:
    await stage.worker("ok")
    client = (await stage.gateway()).openai()
    first = await client.responses.create(model=MODEL, input="one")
    again: Any = [*(item.model_dump() for item in first.output), {"role": "user", "content": "two"}]
    second = await client.responses.create(model=MODEL, input=again, previous_response_id=first.id)
    listed = await client.responses.input_items.list(second.id, order="asc")
    assert [item.content[0].text for item in listed.data] == ["one", "ok", "ok", "two"]  # type: ignore[union-attr]  # messages
    assert len({item.id for item in listed.data}) == 4
    assert listed.data[1].id == first.output[0].id


async def test_another_tenant_finds_nothing(stage: Stage) -> None:
    await stage.worker()
    served = await stage.gateway(api_keys=KEYS)
    ada, bob = served.openai("a"), served.openai("b")
    response = await ada.responses.create(model=MODEL, input="hi")
    for asking in (
        bob.responses.retrieve(response.id),
        bob.responses.cancel(response.id),
        bob.responses.delete(response.id),
        bob.responses.input_items.list(response.id),
        bob.responses.create(model=MODEL, input="x", previous_response_id=response.id),
        bob.responses.create(model=MODEL, input=[{"type": "item_reference", "id": response.output[0].id}]),
    ):
        with pytest.raises(openai.NotFoundError):
            await asking
    assert (await ada.responses.retrieve(response.id)).output_text == TEXT


async def test_log_probabilities(stage: Stage) -> None:
    ids = stage.tokenizer.encode("abc")
    worker = await stage.worker(Answer([ids], logprobs=True))
    client = (await stage.gateway()).openai()
    include: Any = ["message.output_text.logprobs"]
    response = await client.responses.create(model=MODEL, input="hi", include=include, top_logprobs=2)
    assert worker.requests[0].payload.logprobs == 2
    told = response.output[0].content[0].logprobs  # type: ignore[union-attr]
    assert len(told) == len(ids)
    assert len(told[0].top_logprobs) == 2
    include.append("reasoning.encrypted_content")
    assert (await client.responses.retrieve(response.id, include=include)).output == response.output
    with pytest.raises(openai.BadRequestError):
        await client.responses.retrieve(response.id, include=["code_interpreter_call.outputs"])


async def test_the_oldest_records_are_deleted_beyond_a_tenants_limit(stage: Stage) -> None:
    await stage.worker("ok")
    client = (await stage.gateway(max_kept_bytes=4096)).openai()
    ids = [(await client.responses.create(model=MODEL, input="x" * 100)).id for _ in range(8)]
    found = []
    for response_id in ids:
        with suppress(openai.NotFoundError):
            found.append((await client.responses.retrieve(response_id)).id)
    assert found == ids[-len(found) :]
    assert 0 < len(found) < 8


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": []}, "input", "invalid_request"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "item_not_found"),
        ({"input": [{"type": "item_reference"}]}, "input.0.id", "invalid_request"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role", "invalid_request"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input.0.content.0.type",
            "invalid_request",
        ),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input.0.arguments", "invalid_request"),
        (
            {"input": [{"type": "function_call", "call_id": "", "name": "f", "arguments": ""}]},
            "input.0.call_id",
            "invalid_request",
        ),
        ({"input": [{"type": "function_call_output", "output": "7"}]}, "input.0.call_id", "invalid_request"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}]},
            "input.0.output.0.type",
            "invalid_request",
        ),
        (
            {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}]},
            "input.0.summary",
            "invalid_request",
        ),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input.0.encrypted_content", "invalid_request"),
        ({"input": [{"role": "user", "content": "x", "status": "done"}]}, "input.0.status", "invalid_request"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "unsupported_parameter"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools.0.function", "invalid_request"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name", "invalid_request"),
        ({"tools": [{"type": "function", "name": "f"}] * 2}, "tools.1.name", "invalid_request"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_request"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name", "invalid_request"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type", "unsupported_parameter"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}},
            "tool_choice.tools.0.name",
            "invalid_request",
        ),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_request"),
        ({"max_tool_calls": 1}, "max_tool_calls", "unsupported_parameter"),
        ({"conversation": "c"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_parameter"),
        ({"max_tokens": 2}, "max_tokens", "invalid_request"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_request"),
        ({"truncation": "auto"}, "truncation", "invalid_request"),
        ({"include": ["file_search_call.results"]}, "include", "invalid_request"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_request"),
        ({"background": True, "store": False}, "store", "invalid_request"),
        ({"background_options": {"completion_window": "2h"}}, "background_options", "unsupported_parameter"),
        ({"background_options": {"continuation_id": "c"}}, "background_options", "unsupported_parameter"),
        ({"background": True, "on_disconnect": "cancel"}, "on_disconnect", "invalid_request"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary", "unsupported_parameter"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort", "invalid_request"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "invalid_request"),
        (
            {"text": {"format": {"type": "json_schema", "name": "\ud800", "schema": {}}}},
            "text.format.name",
            "invalid_request",
        ),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options", "invalid_request"),
        ({"previous_response_id": "resp_none"}, "previous_response_id", "previous_response_not_found"),
    ],
)
async def test_refused_parameters_are_named(stage: Stage, body: dict[str, Any], param: str, code: str) -> None:
    http = (await stage.gateway(require_worker=False)).http()
    asked = json.dumps({"model": MODEL, "input": "hi", **body})
    refused = await http.post("/v1/responses", content=asked)
    assert refused.status_code in (400, 404)
    assert (refused.json()["error"]["param"], refused.json()["error"]["code"]) == (param, code), refused.text


async def test_what_codex_sends_with_each_request_is_accepted(stage: Stage) -> None:
    await stage.worker("ok")
    http = (await stage.gateway()).http()
    extras = {
        "client_metadata": {"session_id": "s", "turn_id": "t"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "s",
        "reasoning": {},
        "store": False,
    }
    answered = await http.post("/v1/responses", json={"model": MODEL, "input": "hi", **extras})
    assert answered.status_code == 200, answered.text


async def test_a_schema_is_followed(stage: Stage) -> None:
    worker = await stage.worker('{"sum": 7}')
    client = (await stage.gateway()).openai()

    class Sum(pydantic.BaseModel):
        sum: int

    response = await client.responses.parse(model=MODEL, input="3 + 4?", text_format=Sum)
    assert response.output_parsed == Sum(sum=7)
    constraint = worker.requests[0].payload.constraint
    assert constraint is not None
    assert json.loads(constraint.json_schema or "")["properties"]["sum"]["type"] == "integer"


async def test_a_stopping_gateway_ends_only_the_reading(stage: Stage) -> None:
    gate = Gate(3)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served, other = await stage.gateway(), await stage.gateway()
    stream = await served.openai().responses.create(model=MODEL, input="hi", background=True, stream=True)
    events = []
    async for event in stream:
        events.append(event)
        if event.type == "response.output_text.delta":
            served.gateway.begin_stop()
    last = events.pop()
    assert last.type == "error"
    assert last.code == "gateway_stopping"
    await gate.open()
    response_id = events[0].response.id  # type: ignore[union-attr]
    number = last.sequence_number
    rest = [e async for e in await other.openai().responses.retrieve(response_id, stream=True, starting_after=number)]
    numbers = [e.sequence_number for e in (*events, *rest)]  # type: ignore[union-attr]
    assert numbers == list(range(len(numbers)))
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == TEXT
