"""What a body may say: every parameter is honoured or refused by name."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import openai
import pytest

from gateway.admission import Admission, Admitted, Timeouts, trace_headers
from gateway.errors import ApiError, invalid
from gateway.kind import Kind
from schemas.errors import InvalidRequest
from tests.gateway.tiny_model import MAX_MODEL_LEN, write_tiny_model
from text.model_config import ModelConfig
from text.tokenizer import Tokenizer

NOW_MS = 1_000_000
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def admission(tmp_path_factory: pytest.TempPathFactory) -> Admission:
    model = str(write_tiny_model(tmp_path_factory.mktemp("model")))
    return Admission(Tokenizer.load(model), ModelConfig.load(model).limits, "tiny", Timeouts(60, 600))


def admit(admission: Admission, kind: Kind, body: Any, **headers: str) -> Admitted:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return admission.admit(kind, raw, tenant="default", headers=named, now_ms=NOW_MS)


def completion(admission: Admission, **parameters: Any) -> Admitted:
    return admit(admission, Kind.COMPLETION, {"model": "tiny", "prompt": "hi", **parameters})


def chat(admission: Admission, **parameters: Any) -> Admitted:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **parameters}
    return admit(admission, Kind.CHAT, body)


def refusal(admission: Admission, kind: Kind, body: Any) -> ApiError:
    with pytest.raises((ApiError, InvalidRequest)) as caught:
        admit(admission, kind, body)
    error = caught.value
    return error if isinstance(error, ApiError) else invalid(error)


def test_defaults_are_openais(admission: Admission) -> None:
    admitted = completion(admission)
    request = admitted.request
    assert request.payload.max_tokens == 16
    assert request.payload.temperature == 1.0
    assert request.deadline_ms == NOW_MS + 60_000
    assert request.priority_class == "normal"
    assert not admitted.stream
    assert request.id.startswith("cmpl-")
    assert len(request.id) == len("cmpl-") + 32
    assert chat(admission).request.payload.max_tokens is None
    assert chat(admission).request.id.startswith("chatcmpl-")


def test_ids_differ(admission: Admission) -> None:
    assert completion(admission).request.id != completion(admission).request.id


def test_everything_implemented_arrives(admission: Admission) -> None:
    admitted = completion(
        admission,
        prompt=[5, 6, 7],
        n=2,
        max_tokens=9,
        min_tokens=1,
        temperature=0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        seed=7,
        stop="END",
        stop_token_ids=[3],
        ignore_eos=True,
        stream=True,
        stream_options={"include_usage": True},
        user="someone",
        priority="high",
        timeout=1.5,
        on_disconnect="continue",
        request_id="my.own",
    )
    payload = admitted.request.payload
    assert payload.prompt == (5, 6, 7)
    assert (payload.n, payload.max_tokens, payload.min_tokens, payload.seed) == (2, 9, 1, 7)
    assert (payload.temperature, payload.top_p, payload.top_k, payload.min_p) == (0, 0.5, 4, 0.1)
    assert (payload.stop, payload.stop_token_ids, payload.ignore_eos) == (("END",), (3,), True)
    assert payload.on_disconnect == "continue"
    assert (admitted.stream, admitted.include_usage, admitted.user) == (True, True, "someone")
    request = admitted.request
    assert (request.id, request.priority_class, request.deadline_ms) == ("cmpl-my.own", "high", NOW_MS + 1500)


@pytest.mark.parametrize("ask", [completion, chat])
def test_what_other_servers_call_so_arrives(admission: Admission, ask: Callable[..., Admitted]) -> None:
    samples = ask(admission, n=2, best_of=4, cache_salt="blue", ttft_slo_ms=300, tbt_slo_ms=40.5).request.payload
    assert (samples.n, samples.best_of, samples.cache_salt) == (2, 4, "blue")
    assert (samples.ttft_slo_ms, samples.tbt_slo_ms) == (300, 40.5)
    beams = {"use_beam_search": True, "best_of": 3, "length_penalty": 0.5, "early_stopping": True, "temperature": 0}
    found = ask(admission, **beams).request.payload
    assert (found.use_beam_search, found.num_candidates, found.n) == (True, 3, 1)
    assert (found.length_penalty, found.early_stopping) == (0.5, True)
    assert ask(admission, best_of=1, stream=True).request.payload.best_of == 1


@pytest.mark.parametrize("prompt", ["hi", ["hi"]])
def test_one_prompt_in_an_array_is_that_prompt(admission: Admission, prompt: object) -> None:
    assert completion(admission, prompt=prompt).request.payload == completion(admission).request.payload


def test_one_array_of_ids_in_an_array_is_that_prompt(admission: Admission) -> None:
    assert completion(admission, prompt=[[5, 6]]).request.payload.prompt == (5, 6)


def test_default_max_tokens_shrinks_to_what_the_context_leaves(admission: Admission) -> None:
    assert completion(admission, prompt=[5] * (MAX_MODEL_LEN - 4)).request.payload.max_tokens == 4


def test_chat_uses_the_template(admission: Admission) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    plain = chat(admission).request.payload.prompt
    assert chat(admission, messages=[{"role": "user", "content": parts}]).request.payload.prompt == plain
    assert chat(admission, max_completion_tokens=5).request.payload.max_tokens == 5
    assert chat(admission, max_completion_tokens=5, max_tokens=5).request.payload.max_tokens == 5


def test_a_developer_is_a_system_message(admission: Admission) -> None:
    developer = chat(admission, messages=[{"role": "developer", "content": "x"}])
    assert developer.request.payload == chat(admission, messages=[{"role": "system", "content": "x"}]).request.payload


def test_an_answer_may_be_sent_back_as_the_sdk_dumps_it(admission: Admission) -> None:
    dumped = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "annotations": []}
    assert chat(admission, messages=[dumped, {"role": "user", "content": "y"}]).request.payload.prompt


def test_values_that_ask_for_nothing_are_accepted(admission: Admission) -> None:
    neutral = {
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "logprobs": None,
        "echo": False,
        "best_of": None,
        "suffix": None,
        "stop": None,
        "seed": None,
        "stream_options": None,
    }
    assert completion(admission, **neutral).request.payload == completion(admission).request.payload
    nothing = {
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "logprobs": False,
        "top_logprobs": 0,
        "store": False,
        "modalities": ["text"],
    }
    assert chat(admission, **nothing).request.payload == chat(admission).request.payload


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("logit_bias", {"5": 1}),
        ("logprobs", 3),
        ("logprobs", True),
        ("echo", True),
        ("suffix", "x"),
        ("tools", [{}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("frequency_penalty", False),
        ("reasoning_effort", "low"),
    ],
)
def test_unsupported_parameters_are_refused_by_name(admission: Admission, name: str, value: object) -> None:
    error = refusal(admission, Kind.COMPLETION, {"model": "tiny", "prompt": "hi", name: value})
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")
    assert name in error.message


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"nonsense": None}, "nonsense"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"model": 5}, "model"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt.1"),
        ({"prompt": [-1]}, "prompt.0"),
        ({"prompt": [{}, False]}, "prompt.0"),
        ({"prompt": [{"role": "user", "content": "hi"}]}, "prompt.0"),
        ({"prompt": [1.5]}, "prompt.0"),
        ({"prompt": [10**6]}, "prompt.0"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"n": "2"}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": ""}, "stop.0"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["\udfff"]}, "stop.0"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids.0"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"extra": 1}}, "stream_options.extra"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"user": 5}, "user"),
        ({"priority": "urgent"}, "priority"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": 601}, "timeout"),
        ({"on_disconnect": "ignore"}, "on_disconnect"),
        ({"request_id": "with space"}, "request_id"),
        ({"request_id": "x" * 128}, "request_id"),
        ({"tenant": "other"}, "tenant"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 17}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"use_beam_search": "yes"}, "use_beam_search"),
        ({"use_beam_search": True, "stream": True}, "use_beam_search"),
        ({"use_beam_search": True, "temperature": 0.5}, "temperature"),
        ({"use_beam_search": True, "top_p": 0.5}, "top_p"),
        ({"use_beam_search": True, "seed": 1}, "seed"),
        ({"use_beam_search": True, "stop": "x"}, "stop"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"cache_salt": "x" * 129}, "cache_salt"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"ttft_slo_ms": 0}, "ttft_slo_ms"),
        ({"tbt_slo_ms": "fast"}, "tbt_slo_ms"),
    ],
)
def test_wrong_values_are_refused_by_name(admission: Admission, parameters: dict[str, Any], param: str) -> None:
    error = refusal(admission, Kind.COMPLETION, {"model": "tiny", "prompt": "hi", **parameters})
    assert (error.status, error.param) == (400, param)
    assert param in error.message
    assert "allowed" in error.message
    json.dumps(error.body()).encode()


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages.0"),
        ([{"content": "x"}], "messages.0.role"),
        ([{"role": "tool", "content": "x"}], "messages.0.role"),
        ([{"role": ["user"], "content": "x"}], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": []}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content.0.type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
        ([{"role": "user", "content": "x", "name": "bob"}], "messages.0.name"),
        ([{"role": "user", "content": "x", "nmae": None}], "messages.0.nmae"),
        ([{"role": "user", "content": "x", "nmae": ""}], "messages.0.nmae"),
        ([{"role": "user", "content": [{"type": "text", "text": "x", "cache": 1}]}], "messages.0.content.0.cache"),
        ([{"role": "user", "content": "\ud83d"}], "messages.0.content"),
    ],
)
def test_wrong_messages_are_refused_by_name(admission: Admission, messages: object, param: str) -> None:
    error = refusal(admission, Kind.CHAT, {"model": "tiny", "messages": messages})
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'"x"', b"\xff", b"[" * 100_000, b'{"temperature": NaN}'])
def test_what_is_no_json_object_is_refused(admission: Admission, raw: bytes) -> None:
    error = refusal(admission, Kind.COMPLETION, raw)
    assert (error.status, error.param) == (400, "body")


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"model": "tiny", "prompt": "a", "prompt": "b"}', "prompt"),
        (b'{"model": "tiny", "prompt": "a", "seed": 1, "seed": null}', "seed"),
        (b'{"model": "tiny", "prompt": "a", "logit_bias": {"5": 1, "5": 0}}', "5"),
    ],
)
def test_what_is_said_twice_is_refused(admission: Admission, raw: bytes, param: str) -> None:
    error = refusal(admission, Kind.COMPLETION, raw)
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    ("kind", "create", "own"),
    [
        (Kind.COMPLETION, openai.resources.Completions.create, {"model", "prompt"}),
        (Kind.CHAT, openai.resources.chat.Completions.create, {"model", "messages"}),
    ],
)
def test_null_is_taken_for_every_parameter_of_the_official_client(
    admission: Admission, kind: Kind, create: Callable[..., Any], own: set[str]
) -> None:
    beside_the_body = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    nulls = dict.fromkeys(inspect.signature(create).parameters.keys() - beside_the_body - own)
    assert len(nulls) > 10
    ask = chat if kind is Kind.CHAT else completion
    assert ask(admission, **nulls).request.payload == ask(admission).request.payload


def test_every_part_of_a_message_of_the_official_client_may_be_empty(admission: Admission) -> None:
    names = {*openai.types.chat.ChatCompletionMessage.model_fields} - {"role", "content"}
    for kind in get_args(openai.types.chat.ChatCompletionMessageParam):
        names |= kind.__annotations__.keys() - {"role", "content"}
    assert len(names) > 5
    part = dict.fromkeys(openai.types.chat.ChatCompletionContentPartTextParam.__annotations__)
    message = {**dict.fromkeys(names), "role": "user", "content": [{**part, "type": "text", "text": "hi"}]}
    assert chat(admission, messages=[message]).request.payload == chat(admission).request.payload


def test_another_model_is_not_found(admission: Admission) -> None:
    error = refusal(admission, Kind.COMPLETION, {"model": "gpt-9", "prompt": "hi"})
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found")


@pytest.mark.parametrize(
    ("kind", "body", "param"),
    [
        (Kind.COMPLETION, {"prompt": [5] * MAX_MODEL_LEN}, "prompt"),
        (Kind.COMPLETION, {"prompt": [5], "max_tokens": MAX_MODEL_LEN}, "max_tokens"),
        (Kind.CHAT, {"messages": [{"role": "user", "content": "世" * MAX_MODEL_LEN}]}, "messages"),
        (
            Kind.CHAT,
            {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 255},
            "max_completion_tokens",
        ),
    ],
)
def test_beyond_the_context(admission: Admission, kind: Kind, body: dict[str, Any], param: str) -> None:
    error = refusal(admission, kind, {"model": "tiny", **body})
    assert (error.status, error.param, error.code) == (400, param, "context_length_exceeded")


def test_a_token_outside_the_vocabulary_is_another_matter(admission: Admission) -> None:
    error = refusal(admission, Kind.COMPLETION, {"model": "tiny", "prompt": [5, 4000]})
    assert (error.param, error.code) == ("prompt.1", "invalid_request")


def test_the_idempotency_key_names_the_request(admission: Admission) -> None:
    body = {"model": "tiny", "prompt": "hi"}
    assert admit(admission, Kind.COMPLETION, body, idempotency_key="abc").request.id == "cmpl-abc"
    assert admit(admission, Kind.COMPLETION, body, idempotency_key="cmpl-abc").request.id == "cmpl-abc"
    with pytest.raises(InvalidRequest, match="Idempotency-Key"):
        admit(admission, Kind.COMPLETION, body, idempotency_key="a b")


def test_trace_context_travels_on_if_it_is_one(admission: Admission) -> None:
    body = {"model": "tiny", "prompt": "hi"}
    request = admit(admission, Kind.COMPLETION, body, traceparent=PARENT, tracestate="a=1").request
    assert (request.traceparent, request.tracestate) == (PARENT, "a=1")
    assert trace_headers({"traceparent": "nonsense", "tracestate": "a=1"}) == (None, None)
    assert trace_headers({"traceparent": PARENT, "tracestate": "x" * 513}) == (PARENT, None)


def test_a_model_without_chat_template_says_so(tmp_path: Path) -> None:
    model = str(write_tiny_model(tmp_path, chat=False))
    admission = Admission(Tokenizer.load(model), ModelConfig.load(model).limits, "tiny", Timeouts(60, 600))
    error = refusal(admission, Kind.CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]})
    assert (error.status, error.code) == (400, "no_chat_template")


def test_the_kind_is_told_by_the_id() -> None:
    assert Kind.of("chatcmpl-x") is Kind.CHAT
    assert Kind.of("cmpl-x") is Kind.COMPLETION
    assert Kind.of("chatcmplx") is Kind.of("anything") is Kind.COMPLETION


@pytest.mark.parametrize("letter", [" ", "a", "\u00e9", '"', "["])
def test_text_that_no_context_can_take_is_refused_by_its_length(
    admission: Admission, monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    """A tokenizer takes seconds and gigabytes for it, and a template its time."""
    for name in ("encode", "chat_text"):
        monkeypatch.setattr(Tokenizer, name, lambda *_, name=name, **__: pytest.fail(f"{name} was called"))
    most = (MAX_MODEL_LEN - 1) * admission._tokenizer.longest_token
    half = letter * (most // 2 + 1)
    refused = [
        refusal(admission, Kind.COMPLETION, {"model": "tiny", "prompt": half * 2}),
        refusal(admission, Kind.CHAT, {"model": "tiny", "messages": [{"role": "user", "content": half}] * 2}),
    ]
    for error, param in zip(refused, ("prompt", "messages"), strict=True):
        assert (error.status, error.param, error.code) == (400, param, "context_length_exceeded")
        assert f"{param}: got '{2 * len(half)} characters', allowed: at most {most} characters" in error.message


def test_a_template_that_writes_too_much_is_not_tokenized(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "chat_text", lambda *_: "x" * 10**6)
    monkeypatch.setattr(Tokenizer, "encode", lambda *_, **__: pytest.fail("encode was called"))
    error = refusal(admission, Kind.CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "x"}]})
    assert (error.param, error.code) == ("messages", "context_length_exceeded")


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"{" + b",".join(b'"%d":1' % number for number in range(350_000)) + b"}", "names and texts"),
        (b'{"model":"tiny","prompt":[' + b",".join([b'""'] * 1_000_000) + b"]}", "names and texts"),
        (b'{"model":"tiny","prompt":[' + b",".join([b"[]"] * 1_000_000) + b"]}", "maps and arrays"),
        (b'{"model":"tiny","prompt":[' + b",".join([b"1e5"] * 1_000_000) + b"]}", "values"),
    ],
    ids=["names", "texts", "arrays", "numbers"],
)
def test_a_body_of_too_many_things_is_refused_before_it_is_parsed(
    admission: Admission, monkeypatch: pytest.MonkeyPatch, raw: bytes, what: str
) -> None:
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    error = refusal(admission, Kind.COMPLETION, raw)
    assert (error.status, error.param) == (400, "body")
    assert f"more than {error.message.rsplit(' ', 1)[1]} {what}" in error.message
