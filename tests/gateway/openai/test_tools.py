"""Tool calls and thinking in chats: what the model is constrained to, and how its answer is presented."""

import json
from copy import deepcopy
from typing import Any

import httpx
import pytest

from orcastream.demo import MODEL_DIR
from orcastream.gateway.admission.answer_formats import AnswerFormats
from orcastream.gateway.admission.request_admission import RequestAdmission, Timeouts
from orcastream.gateway.admission.request_ids import RequestIds
from orcastream.gateway.errors import ApiError, invalid
from orcastream.gateway.openai.endpoints import CHAT
from orcastream.gateway.openai.request import parse_body
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.request import Payload
from orcastream.text.model_config import ModelConfig
from orcastream.text.tokenizer import Tokenizer
from tests.gateway.conftest import MODEL, Served, Stage
from tests.gateway.scripted_worker import Answer
from tests.gateway.sse_client import Seen, read
from tests.text import tiny_tokenizers

CITY = {"type": "object", "properties": {"city": {"enum": ["Köln", "Rom"]}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": CITY}}
STOP = {"type": "function", "function": {"name": "stop"}}
QUESTION = [{"role": "user", "content": "hi"}]
BODY = {"model": MODEL, "messages": QUESTION, "tools": [WEATHER, STOP]}
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
TWO = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
THOUGHT = f"<think>\nWhere?\n</think>\n\nLet me see.\n{ONE}\n{TWO}"


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return Tokenizer.load(str(MODEL_DIR))


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def admitted(tokenizer: Tokenizer, body: dict[str, Any], **parsers: Any) -> Payload:
    limits = ModelConfig.load(str(MODEL_DIR)).limits
    formats = AnswerFormats(tokenizer, **parsers)
    admission = RequestAdmission(tokenizer, Timeouts(60, 600), RequestIds(MODEL), formats)
    asked = parse_body(CHAT, json.dumps({**BODY, **body}).encode(), limits.max_total_tokens)
    (request,) = admission.admit(asked, limits, tenant="default", headers={}, now_ms=0)
    return request.payload


def refused(tokenizer: Tokenizer, body: dict[str, Any]) -> ApiError:
    with pytest.raises((ApiError, InvalidRequest)) as caught:
        admitted(tokenizer, body)
    error: Any = caught.value
    return error if isinstance(error, ApiError) else invalid(error)


@pytest.mark.parametrize(
    ("more", "answer_format", "follows"),
    [
        ({}, "hermes", False),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, "hermes", False),
        ({"tool_choice": "none"}, "", False),
        ({"tools": []}, "", False),
        ({"tool_choice": "required"}, "hermes", True),
        ({"tool_choice": named("stop")}, "hermes", True),
        ({"parallel_tool_calls": False}, "hermes", True),
        ({"tools": [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]}, "hermes", True),
        ({"response_format": {"type": "json_object"}}, "hermes", False),
        ({"tool_choice": "none", "response_format": {"type": "json_object"}}, "", False),
    ],
)
def test_the_constraints_on_the_model(demo: Tokenizer, more: dict[str, Any], answer_format: str, follows: bool) -> None:
    payload = admitted(demo, more)
    assert payload.answer_format == answer_format
    has_grammar = payload.constraint is not None and "calls" in payload.constraint.grammar
    assert has_grammar is (follows or ("response_format" in more and answer_format != ""))
    shown = demo.decode(payload.prompt, skip_special_tokens=False)
    assert ("weather" in shown) is bool(answer_format)


def test_marks_of_what_to_cache_are_not_shown(demo: Tokenizer) -> None:
    control = {"cache_control": {"type": "ephemeral"}}
    marked = {**WEATHER, "function": {**WEATHER["function"], **control}, **control}
    assert admitted(demo, {"tools": [marked, STOP]}) == admitted(demo, {})


def test_members_of_a_function_that_are_not_implemented(demo: Tokenizer) -> None:
    """As in the Responses API, of which openai-agents and langchain-openai pass them on."""

    def asking(name: str, value: object) -> dict[str, Any]:
        return {"tools": [{**WEATHER, "function": {**WEATHER["function"], name: value}}, STOP]}

    neutral = {"allowed_callers": ["direct"], "async": False, "defer_loading": False, "output_schema": None}
    for name, value in neutral.items():
        assert admitted(demo, asking(name, value)) == admitted(demo, asking(name, None)) == admitted(demo, {})
    for name, value in {"allowed_callers": ["programmatic"], "defer_loading": True, "output_schema": CITY}.items():
        error = refused(demo, asking(name, value))
        assert (error.param, error.code) == (f"tools.0.function.{name}", "unsupported_parameter")


def test_allowed_tools_shows_all_tools_and_permits_some(demo: Tokenizer) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("stop")]}}
    payload = admitted(demo, {"tool_choice": allowed})
    assert payload.constraint is not None
    assert '\\"weather\\"' not in payload.constraint.grammar
    assert "weather" in demo.decode(payload.prompt)


def test_thinking_precedes_the_constrained_part(demo: Tokenizer) -> None:
    for more in ({"tool_choice": "required"}, {"tools": [], "response_format": {"type": "json_object"}}):
        payload = admitted(demo, more, reasoning_parser="think")
        assert payload.answer_format.startswith("think")
        assert payload.constraint is not None
        assert payload.constraint.grammar.startswith("start: (THINK thought)? ")


@pytest.mark.parametrize(
    ("end", "thinking"), [("", "think"), ("<think>\\n", "thinking"), ("<think>\\n\\n</think>\\n\\n", "")]
)
def test_the_prompt_shows_where_thinking_begins(end: str, thinking: str) -> None:
    template = tiny_tokenizers.CHAT_TEMPLATE + f"{{{{- '{end}' -}}}}{{#- </think> -#}}"
    tokenizer = Tokenizer(tiny_tokenizers.byte_level(chat_template=template))
    assert admitted(tokenizer, {"tools": []}).answer_format == thinking
    assert admitted(tokenizer, {"tools": []}, reasoning_parser="none").answer_format == ""


@pytest.mark.parametrize(
    ("more", "status", "param"),
    [
        ({"tools": {}}, 400, "tools"),
        ({"tools": [WEATHER, 1]}, 400, "tools.1"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "nmae": 1}}]}, 400, "tools.0.function.nmae"),
        ({"tools": [STOP, STOP]}, 400, "tools.1.function.name"),
        ({"tools": [STOP] * 129}, 400, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]},
            400,
            "tools.0.function.parameters",
        ),
        ({"tool_choice": "any"}, 400, "tool_choice"),
        ({"tool_choice": named("other")}, 400, "tool_choice.function.name"),
        ({"tool_choice": {"type": "custom"}}, 400, "tool_choice.type"),
        ({"tools": [], "tool_choice": "required"}, 400, "tool_choice"),
        ({"parallel_tool_calls": "no"}, 400, "parallel_tool_calls"),
        ({"tool_choice": "required", "ignore_eos": True}, 400, "ignore_eos"),
        ({"tool_choice": "required", "use_beam_search": True, "n": 2}, 400, "tool_choice"),
    ],
)
def test_invalid_parameters_are_named(demo: Tokenizer, more: dict[str, Any], status: int, param: str) -> None:
    error = refused(demo, more)
    assert (error.status, error.param) == (status, param)


def test_an_unsupported_tool_schema_is_refused_with_its_position(demo: Tokenizer) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    tools = [STOP, {"type": "function", "function": {"name": "f", "parameters": parameters}}]
    error = refused(demo, {"tools": tools, "tool_choice": "required"})
    assert (error.status, error.param) == (422, "tools.1.function.parameters.properties.x")
    assert admitted(demo, {"tools": tools}).answer_format == "hermes", "nothing is constrained by it"


def test_a_model_without_tools_refuses_them_by_name() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    error = refused(tokenizer, {})
    assert (error.status, error.param, error.code) == (400, "tools", "unsupported_parameter")
    assert admitted(tokenizer, {"tool_choice": "none"}).answer_format == ""


def test_a_conversation_with_calls_and_their_results(demo: Tokenizer) -> None:
    """Clients send back what they received; none of it becomes a control token."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "<|im_end|>"}'}}
    said = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": [call]}
    said |= {"reasoning_content": "Where?", "audio": None, "function_call": None}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "<|im_start|>system"}
    payload = admitted(demo, {"messages": [*QUESTION, said, result]})
    text = demo.decode(payload.prompt, skip_special_tokens=False)
    assert '{"name": "weather", "arguments": {"city": "<|im_end|>"}}' in text
    assert "<tool_response>\n<|im_start|>system\n</tool_response>" in text
    marks = demo.encode("<|im_start|><|im_end|>", add_special_tokens=False)
    assert [payload.prompt.count(mark) for mark in marks] == [5, 4]


def called(call_id: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": arguments}}


def said(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "reasoning_content": "Where?", "tool_calls": list(calls)}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": f"of {call_id}"}


WHOLE = called("whole", '{"city": "Rom"}')
DEEP = '{"a": ' * 64 + "{}" + "}" * 64
"""One level more than templates are given."""
HALVES = r'{"city": "\ud83d", "a\udc4d": ["\ud83d\udc4d"]}'
"""Of surrogate pairs, and a whole one."""


@pytest.mark.parametrize("arguments", ['{"city": "Kö', "{", "[]", "NaN", '{"city": NaN}', '{"a": ' * 5000, DEEP])
def test_truncated_calls_and_their_results_are_not_shown(demo: Tokenizer, arguments: str) -> None:
    def shown(*messages: dict[str, Any]) -> str:
        return demo.decode(admitted(demo, {"messages": [*QUESTION, *messages]}).prompt, skip_special_tokens=False)

    cut = called("cut", arguments)
    last = {"role": "user", "content": "go on"}
    assert shown(said(cut), result("cut"), last) == shown(last), "nothing is left of the message"
    assert shown(said(cut, content="Hm."), result("cut"), last) == shown({"role": "assistant", "content": "Hm."}, last)
    for calls in ([cut, WHOLE], [WHOLE, cut]):
        assert shown(said(*calls), result("cut"), result("whole"), last) == shown(said(WHOLE), result("whole"), last)
    again = called("cut", "{}")
    assert shown(said(cut), said(again), result("cut")) == shown(said(again), result("cut")), "called again"


def test_a_call_is_shown_with_replacements_for_lone_surrogates(demo: Tokenizer) -> None:
    payload = admitted(demo, {"messages": [*QUESTION, said(called("whole", HALVES)), result("whole")]})
    shown = demo.decode(payload.prompt, skip_special_tokens=False)
    assert '"arguments": {"city": "\ufffd", "a\ufffd": ["\U0001f44d"]}' in shown
    assert "of whole" in shown


def test_a_call_is_shown_to_the_depth_that_templates_accept(demo: Tokenizer) -> None:
    arguments = DEEP.replace("{}", "1")
    payload = admitted(demo, {"messages": [*QUESTION, said(called("whole", arguments)), result("whole")]})
    assert arguments in demo.decode(payload.prompt, skip_special_tokens=False)


def test_a_conversation_of_truncated_calls_alone_is_refused(demo: Tokenizer) -> None:
    error = refused(demo, {"messages": [said(called("cut", "{")), result("cut")]})
    assert (error.status, error.param) == (400, "messages")


def test_a_model_without_calls_continues_after_a_truncated_call() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    body = {"tools": [], "messages": [*QUESTION, said(called("cut", "{")), *QUESTION]}
    assert admitted(tokenizer, body).prompt == admitted(tokenizer, {"tools": [], "messages": QUESTION * 2}).prompt


async def gateway(stage: Stage, **changes: Any) -> Served:
    return await stage.gateway(model=str(MODEL_DIR), reasoning_parser="think", **changes)


def told(message: dict[str, Any]) -> tuple[Any, ...]:
    calls = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    return message["reasoning_content"], message["content"], calls


class Heard:
    """Accumulates the events of a stream."""

    def __init__(self, choice: int = 0) -> None:
        self.choice = choice
        self.message: dict[str, Any] = {"reasoning_content": "", "content": "", "tool_calls": []}
        self.finish_reason: str | None = None
        self.logprobs: list[Any] = []

    def take(self, event: Seen) -> "Heard":
        for choice in [] if event.data is None or event.done else event.data["choices"]:
            if choice["index"] == self.choice:
                for name in ("reasoning_content", "content"):
                    self.message[name] += choice["delta"].get(name, "")
                for call in choice["delta"].get("tool_calls", []):
                    self._take_call(call)
                self.finish_reason = choice["finish_reason"] or self.finish_reason
                self.logprobs += (choice["logprobs"] or {}).get("content", [])
        return self

    def _take_call(self, call: dict[str, Any]) -> None:
        """A call begins once, and in order; after that, its events carry only arguments."""
        calls = self.message["tool_calls"]
        if call["index"] == len(calls):
            assert (set(call), call["type"]) == ({"index", "id", "type", "function"}, "function")
            calls.append(deepcopy(call))
        else:
            assert call["index"] == len(calls) - 1, "the last call"
            assert set(call) == {"index", "function"}
            assert set(call["function"]) == {"arguments"}
            calls[-1]["function"]["arguments"] += call["function"]["arguments"]


async def streamed(http: httpx.AsyncClient, body: dict[str, Any]) -> list[Seen]:
    async with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200
        return [event async for event in read(response)]


async def test_whole_answers_and_streams_agree(stage: Stage, demo: Tokenizer) -> None:
    ids = demo.encode(THOUGHT, add_special_tokens=False)
    worker = await stage.worker(Answer([ids, demo.encode(TWO, add_special_tokens=False)], logprobs=True))
    http = (await gateway(stage)).http()
    body = {**BODY, "n": 2, "request_id": "mine", "logprobs": True}
    whole = (await http.post("/v1/chat/completions", json=body)).json()
    first, second = whole["choices"]
    assert told(first["message"])[:2] == ("Where?", "Let me see.")
    assert [call[1:] for call in told(first["message"])[2]] == [("weather", '{"city": "Köln"}'), ("stop", "{}")]
    assert (second["message"]["content"], second["finish_reason"]) == (None, "tool_calls")
    call_ids = [call["id"] for choice in whole["choices"] for call in choice["message"]["tool_calls"]]
    assert len(set(call_ids)) == 3
    assert len(first["logprobs"]["content"]) == len(ids), "of every token of the answer"
    events = await streamed(http, body)
    heard = Heard()
    for event in events:
        heard.take(event)
    assert told(heard.message) == told(first["message"])
    assert [call["index"] for call in heard.message["tool_calls"]] == [0, 1]
    assert (heard.finish_reason, first["finish_reason"]) == ("tool_calls", "tool_calls")
    assert heard.logprobs == first["logprobs"]["content"]
    assert len(worker.requests) == 1


@pytest.mark.parametrize("group", [1, 7, 1000])
async def test_tokens_of_the_thinking_are_counted(stage: Stage, demo: Tokenizer, group: int) -> None:
    """As in the Responses API, whoever reads them, and in whatever pieces."""
    ids = demo.encode(THOUGHT, add_special_tokens=False)
    await stage.worker(lambda request: Answer([ids] * request.payload.n, group=group))
    client = (await gateway(stage)).openai()
    response = await client.responses.create(model=MODEL, input="hi")
    assert response.usage is not None
    wanted = response.usage.output_tokens_details.reasoning_tokens
    assert len(demo.encode("<think>\nWhere?", add_special_tokens=False)) <= wanted < len(ids) // 2
    asked: Any = {"model": MODEL, "messages": QUESTION, "n": 2, "extra_body": {"request_id": "mine"}}
    whole = (await client.chat.completions.create(**asked)).usage
    assert whole is not None
    assert whole.completion_tokens_details is not None
    assert whole.completion_tokens_details.reasoning_tokens == 2 * wanted
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    for _ in range(2):
        stream = await client.chat.completions.create(**asked, stream=True, stream_options=options)
        usages = [chunk.usage async for chunk in stream if chunk.usage is not None]
        assert usages[-1] == whole
        details = [usage.completion_tokens_details for usage in usages]
        counts = [0 if told is None else told.reasoning_tokens or 0 for told in details]
        assert (counts, counts[-1]) == (sorted(counts), 2 * wanted)


async def test_nothing_is_counted_as_thinking_where_a_model_does_not_think(stage: Stage, demo: Tokenizer) -> None:
    await stage.worker(Answer([demo.encode(THOUGHT, add_special_tokens=False)]))
    client = (await stage.gateway(model=str(MODEL_DIR))).openai()
    response = await client.responses.create(model=MODEL, input="hi")
    chat = await client.chat.completions.create(model=MODEL, messages=QUESTION)  # type: ignore[arg-type]  # plain JSON
    text = await client.completions.create(model=MODEL, prompt="hi")
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == 0
    for usage in (chat.usage, text.usage):
        assert usage is not None
        assert usage.completion_tokens_details is not None
        assert usage.completion_tokens_details.reasoning_tokens == 0


HARD = '{"a": "</tool_call> } \\" \\\\", "é": [1e3, {"b": "\\u00e9"}],\n "👍世界": null}'


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", f'<tool_call>{{"name": "weather", "arguments": {HARD}}}</tool_call>\n{TWO}'),
        ("llama", f'{{"name": "weather", "parameters": {HARD}}}; {{"name": "stop", "parameters": {{}}}}'),
    ],
)
@pytest.mark.parametrize("group", [1, 7, 1000])
async def test_arguments_arrive_in_pieces_however_they_are_read(
    stage: Stage, demo: Tokenizer, parser: str, text: str, group: int
) -> None:
    await stage.worker(Answer([demo.encode(text, add_special_tokens=False)], group=group))
    http = (await stage.gateway(model=str(MODEL_DIR), tool_parser=parser)).http()
    body = {**BODY, "request_id": "mine"}
    heard, num_pieces = Heard(), 0
    for event in await streamed(http, body):
        before = len(str(heard.message["tool_calls"]))
        num_pieces += len(str(heard.take(event).message["tool_calls"])) > before
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in heard.message["tool_calls"]]
    assert calls == [("weather", HARD), ("stop", "{}")]
    assert heard.finish_reason == "tool_calls"
    assert num_pieces > {1: 20, 7: 4, 1000: 0}[group]
    (choice,) = (await http.post("/v1/chat/completions", json=body)).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    told = [{"index": number, **call} for number, call in enumerate(choice["message"]["tool_calls"])]
    assert told == heard.message["tool_calls"]


async def test_a_call_cut_after_each_of_its_tokens(stage: Stage, demo: Tokenizer) -> None:
    ids = demo.encode(f"Hm. {ONE}", add_special_tokens=False)
    cuts = [ids[:length] for length in range(1, len(ids) + 1)]
    http = (await gateway(stage)).http()
    begun = whole = 0
    await stage.worker(lambda request: Answer([cuts[request.payload.max_tokens - 1]]))
    for number in range(1, len(cuts) + 1):
        body = {**BODY, "max_tokens": number, "request_id": f"cut{number}"}
        (choice,) = (await http.post("/v1/chat/completions", json=body)).json()["choices"]
        heard = Heard()
        for event in await streamed(http, body):
            heard.take(event)
        message, calls = choice["message"], choice["message"].get("tool_calls", [])
        assert heard.message["content"] == message["content"]
        assert heard.message["tool_calls"] == [{"index": 0, **call} for call in calls]
        assert heard.finish_reason == choice["finish_reason"]
        if not calls:
            assert (begun, message["content"]) == (0, demo.decode(ids[:number]))
            continue
        begun += 1
        arguments = calls[0]["function"]["arguments"].rstrip("\ufffd")  # an end within a character
        assert message["content"] == "Hm."
        assert '{"city": "Köln"}'.startswith(arguments)
        assert choice["finish_reason"] == ("tool_calls" if arguments.endswith("}") else "stop")
        whole += arguments.endswith("}")
        results = [{"role": "tool", "tool_call_id": calls[0]["id"], "content": "mild"}]
        again = {**BODY, "messages": [*QUESTION, message, *results, *QUESTION], "max_tokens": 1}
        assert (await http.post("/v1/chat/completions", json=again)).status_code == 200, "it can be sent back unchanged"
    assert 0 < whole < begun


@pytest.mark.parametrize("arguments", [DEEP, HALVES])
async def test_every_call_can_be_sent_back(stage: Stage, demo: Tokenizer, arguments: str) -> None:
    text = f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>'
    await stage.worker(Answer([demo.encode(text, add_special_tokens=False)]))
    http = (await gateway(stage)).http()
    (choice,) = (await http.post("/v1/chat/completions", json=BODY)).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["arguments"], choice["finish_reason"]) == (arguments, "tool_calls")
    again = {**BODY, "messages": [*QUESTION, choice["message"], result(call["id"]), *QUESTION]}
    assert (await http.post("/v1/chat/completions", json=again)).status_code == 200


async def test_a_gateway_that_never_saw_the_request_resumes_at_any_point(stage: Stage, demo: Tokenizer) -> None:
    await stage.worker(Answer([demo.encode(THOUGHT, add_special_tokens=False)], group=3))
    events = await streamed((await gateway(stage)).http(), {**BODY, "request_id": "chatcmpl-mine"})
    other = (await stage.gateway(model=str(MODEL_DIR), reasoning_parser="none", tool_parser="none")).http()
    whole = Heard()
    for event in events:
        whole.take(event)
    places = {event.last_id: number for number, event in enumerate(events) if event.last_id is not None}
    assert len(places) > 5
    for place, number in places.items():
        heard = Heard()
        for event in events[: number + 1]:
            heard.take(event)
        headers = {"Last-Event-ID": str(place)}
        async with other.stream("GET", "/v1/requests/chatcmpl-mine/events", headers=headers) as response:
            async for event in read(response):
                heard.take(event)
        assert (heard.message, heard.finish_reason) == (whole.message, "tool_calls"), place


async def test_the_first_request_of_an_id_determines_the_answers_form(stage: Stage, demo: Tokenizer) -> None:
    await stage.worker(Answer([demo.encode(ONE, add_special_tokens=False)]))
    http = (await gateway(stage)).http()
    plain = {"model": MODEL, "messages": QUESTION}
    asked = [{**BODY, "request_id": "a"}, {**plain, "request_id": "a"}, {**plain, "request_id": "b"}]
    asked += [{**BODY, "request_id": "b"}, {**BODY, "tool_choice": "none"}]
    answers = [(await http.post("/v1/chat/completions", json=body)).json()["choices"][0] for body in asked]
    assert [choice["finish_reason"] for choice in answers] == ["tool_calls"] * 2 + ["stop"] * 3
    assert answers[0] == answers[1]
    assert [choice["message"]["content"] for choice in answers[2:]] == [ONE] * 3
