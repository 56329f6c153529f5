"""What a body may contain: every parameter is honored or refused by name."""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import openai
import pytest

from orcastream.gateway.admission.request_admission import RequestAdmission, Timeouts
from orcastream.gateway.admission.request_ids import RequestIds
from orcastream.gateway.admission.trace_headers import trace_headers
from orcastream.gateway.errors import ApiError, invalid
from orcastream.gateway.openai.endpoint import GenerationEndpoint
from orcastream.gateway.openai.endpoints import CHAT, COMPLETIONS, endpoint_of
from orcastream.gateway.openai.messages import read_messages
from orcastream.gateway.openai.options import Options, UsageWanted
from orcastream.gateway.openai.request import parse_body
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import check_id
from orcastream.schemas.model_limits import ModelLimits
from orcastream.schemas.request import GenerationRequest
from orcastream.text.chat_template import ChatTemplate, RenderedChat
from orcastream.text.control_tokens import Segment
from orcastream.text.tokenizer import Tokenizer
from tests.gateway.tiny_model import MAX_MODEL_LEN, write_framing_model, write_thinking_model, write_tiny_model
from tests.text import tiny_tokenizers

NOW_MS = 1_000_000
LIMITS = ModelLimits(vocab_size=len(tiny_tokenizers.byte_level()), max_model_len=MAX_MODEL_LEN)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass(frozen=True)
class Admitted:
    """A request that may be enqueued, and its client's instructions to the gateway."""

    request: GenerationRequest
    requests: list[GenerationRequest]
    options: Options


def admission_of(model: str) -> RequestAdmission:
    return RequestAdmission(Tokenizer.load(model), Timeouts(60, 600), RequestIds("tiny"))


@pytest.fixture(scope="module")
def admission(tmp_path_factory: pytest.TempPathFactory) -> RequestAdmission:
    return admission_of(str(write_tiny_model(tmp_path_factory.mktemp("model"))))


def admit(
    admission: RequestAdmission, endpoint: GenerationEndpoint, body: Any, tenant: str = "default", **headers: str
) -> Admitted:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    asked = parse_body(endpoint, raw, LIMITS.max_total_tokens)
    admitted = admission.admit(asked, LIMITS, tenant=tenant, headers=named, now_ms=NOW_MS)
    return Admitted(admitted[0], admitted, asked.options)


def completion(admission: RequestAdmission, **parameters: Any) -> Admitted:
    return admit(admission, COMPLETIONS, {"model": "tiny", "prompt": "hi", **parameters})


def test_prompt_log_probabilities_are_bounded_by_the_answer_size(admission: RequestAdmission) -> None:
    asked = {"prompt": [[5] * 128] * 128, "n": 16, "echo": True, "logprobs": 1}
    assert len(completion(admission, **asked).requests) == 128
    with pytest.raises(InvalidRequest, match=r"^logprobs: got 2, allowed: .*, not 786432"):
        completion(admission, **{**asked, "logprobs": 2})


def chat(admission: RequestAdmission, **parameters: Any) -> Admitted:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **parameters}
    return admit(admission, CHAT, body)


def refusal(admission: RequestAdmission, endpoint: GenerationEndpoint, body: Any) -> ApiError:
    with pytest.raises((ApiError, InvalidRequest)) as caught:
        admit(admission, endpoint, body)
    error: Any = caught.value
    return error if isinstance(error, ApiError) else invalid(error)


def test_defaults_equal_openais(admission: RequestAdmission) -> None:
    admitted = completion(admission)
    request = admitted.request
    assert request.payload.max_tokens == 16
    assert request.payload.temperature == 1.0
    assert request.deadline_ms == NOW_MS + 60_000
    assert request.priority_class == "normal"
    assert not admitted.options.stream
    assert request.id.startswith("cmpl-")
    assert len(request.id) == len("cmpl-") + 32
    assert chat(admission).request.payload.max_tokens is None
    assert chat(admission).request.id.startswith("chatcmpl-")


def test_ids_differ(admission: RequestAdmission) -> None:
    assert completion(admission).request.id != completion(admission).request.id


def test_every_implemented_parameter_reaches_the_request(admission: RequestAdmission) -> None:
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
    payload, options = admitted.request.payload, admitted.options
    assert payload.prompt == (5, 6, 7)
    assert (payload.n, payload.max_tokens, payload.min_tokens, payload.seed) == (2, 9, 1, 7)
    assert (payload.temperature, payload.top_p, payload.top_k, payload.min_p) == (0, 0.5, 4, 0.1)
    assert (payload.stop, payload.stop_token_ids, payload.ignore_eos) == (("END",), (3,), True)
    assert payload.on_disconnect == "continue"
    assert (options.stream, options.usage, options.user) == (True, UsageWanted(at_end=True), "someone")
    request = admitted.request
    assert (request.id, request.priority_class, request.deadline_ms) == ("cmpl-my.own", "high", NOW_MS + 1500)


@pytest.mark.parametrize("ask", [completion, chat])
def test_names_of_other_servers_reach_the_request(admission: RequestAdmission, ask: Callable[..., Admitted]) -> None:
    samples = ask(admission, n=2, best_of=4, cache_salt="blue", ttft_slo_ms=300, tbt_slo_ms=40.5).request.payload
    assert (samples.n, samples.best_of, samples.cache_salt) == (2, 4, "blue")
    assert (samples.ttft_slo_ms, samples.tbt_slo_ms) == (300, 40.5)
    beams = {"use_beam_search": True, "best_of": 3, "length_penalty": 0.5, "early_stopping": True, "temperature": 0}
    found = ask(admission, **beams).request.payload
    assert (found.use_beam_search, found.num_candidates, found.n) == (True, 3, 1)
    assert (found.length_penalty, found.early_stopping) == (0.5, True)
    assert ask(admission, best_of=1, stream=True).request.payload.best_of == 1


@pytest.mark.parametrize("prompt", ["hi", ["hi"]])
def test_an_array_with_one_prompt_is_that_prompt(admission: RequestAdmission, prompt: object) -> None:
    assert completion(admission, prompt=prompt).request.payload == completion(admission).request.payload


def test_several_prompts_are_several_requests(admission: RequestAdmission) -> None:
    mixed = completion(admission, prompt=["hi", [5, 6], "hi"], n=2, request_id="mine").requests
    plain = completion(admission).request.payload.prompt
    assert [request.payload.prompt for request in mixed] == [plain, (5, 6), plain]
    assert [request.id for request in mixed] == ["cmpl-mine", "cmpl-mine.p1", "cmpl-mine.p2"]
    assert {(request.payload.n, request.deadline_ms) for request in mixed} == {(2, NOW_MS + 60_000)}
    assert len({request.id for request in completion(admission, prompt=["a", "b"]).requests}) == 2


def test_a_client_chosen_id_belongs_to_its_tenant(admission: RequestAdmission) -> None:
    body = {"model": "tiny", "prompt": "hi", "request_id": "mine"}
    ids = {tenant: admit(admission, COMPLETIONS, body, tenant).request.id for tenant in ("default", "alpha", "beta")}
    assert len(set(ids.values())) == 3
    assert admit(admission, COMPLETIONS, body, "alpha").request.id == ids["alpha"]
    ours = RequestIds("tiny")
    for tenant, request_id in ids.items():
        assert ours.shown(request_id, tenant) == "cmpl-mine"
        assert request_id in ours.meant("cmpl-mine", tenant)
        assert request_id in ours.meant(request_id, tenant)
        check_id(request_id)
    assert ours.shown(ids["alpha"], "beta") == ids["alpha"]
    other = RequestIds("other", is_default=False)
    assert other.in_queue("cmpl-mine", "default") not in {*ids.values()}
    with pytest.raises(InvalidRequest, match=r"request_id: got .*allowed: at most 106 characters"):
        admit(admission, COMPLETIONS, {**body, "request_id": "x" * 107}, "alpha")


def test_an_array_with_one_array_of_ids_is_that_prompt(admission: RequestAdmission) -> None:
    assert completion(admission, prompt=[[5, 6]]).request.payload.prompt == (5, 6)


def test_default_max_tokens_shrinks_to_the_remaining_context(admission: RequestAdmission) -> None:
    assert completion(admission, prompt=[5] * (MAX_MODEL_LEN - 4)).request.payload.max_tokens == 4


def test_chat_uses_the_template(admission: RequestAdmission) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    plain = chat(admission).request.payload.prompt
    assert chat(admission, messages=[{"role": "user", "content": parts}]).request.payload.prompt == plain
    assert chat(admission, max_completion_tokens=5).request.payload.max_tokens == 5
    assert chat(admission, max_completion_tokens=5, max_tokens=5).request.payload.max_tokens == 5


def test_logit_parameters_reach_the_request(admission: RequestAdmission) -> None:
    payload = completion(
        admission, presence_penalty=0.5, frequency_penalty=-1, repetition_penalty=1.2, logit_bias={"5": -100, "7": 2.5}
    ).request.payload
    assert (payload.presence_penalty, payload.frequency_penalty, payload.repetition_penalty) == (0.5, -1, 1.2)
    assert payload.logit_bias == ((5, -100.0), (7, 2.5))


def test_logprobs_can_be_requested_in_two_ways(admission: RequestAdmission) -> None:
    assert completion(admission, logprobs=0).request.payload.logprobs == 0
    assert completion(admission, logprobs=4).request.payload.logprobs == 4
    assert completion(admission, logprobs=False).request.payload.logprobs is None
    assert chat(admission, logprobs=True).request.payload.logprobs == 0
    assert chat(admission, logprobs=True, top_logprobs=4).request.payload.logprobs == 4
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"top_logprobs": 4}, "top_logprobs"),
        ({"logprobs": 4}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ]
    for parameters, param in wrong:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], **parameters}
        error = refusal(admission, CHAT, body)
        assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize("ask", [completion, chat])
def test_parameters_that_cannot_change_the_answer_are_accepted(
    admission: RequestAdmission, ask: Callable[..., Admitted]
) -> None:
    hints = {
        "metadata": {"run": "7"},
        "prediction": {"type": "content", "content": "x"},
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "safety_identifier": "someone",
        "store": False,
        "user": "someone",
        "stream": True,
        "stream_options": {"include_obfuscation": False, "continuous_usage_stats": True},
    }
    assert ask(admission, **hints).request.payload == ask(admission).request.payload


def test_null_is_the_default_of_members_too(admission: RequestAdmission) -> None:
    """As programs send them whose objects have all members."""
    options = {"include_usage": None, "continuous_usage_stats": None, "include_obfuscation": None}
    asked = chat(admission, stream=True, stream_options=options, response_format={"type": "text", "json_schema": None})
    assert asked.request.payload == chat(admission).request.payload
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    null, usual = ({"role": "assistant", "tool_calls": [{**call, "type": kind}]} for kind in (None, "function"))
    assert read_messages([null]) == read_messages([usual])


@pytest.mark.parametrize("ask", [completion, chat])
def test_vllms_extras_are_accepted_if_they_have_no_effect(
    admission: RequestAdmission, ask: Callable[..., Admitted]
) -> None:
    extras = {
        "repetition_penalty": 1.0,
        "priority": 0,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False,
        "truncate_prompt_tokens": None,
        "prompt_logprobs": None,
        "guided_json": None,
        "min_p": 0,
        "top_k": -1,
        "length_penalty": 1.0,
        "echo": False,
    }
    assert ask(admission, **extras).request.payload == ask(admission).request.payload


@pytest.mark.parametrize("ask", [completion, chat])
def test_special_tokens_around_a_text(ask: Callable[..., Admitted], tmp_path: Path) -> None:
    framing = admission_of(str(write_framing_model(tmp_path)))
    usual, without, around = (
        ask(framing, add_special_tokens=value).request.payload.prompt for value in (None, False, True)
    )
    assert around == (1, *without, 2)
    assert usual == (around if ask is completion else without)


def test_a_service_tier_is_a_class(admission: RequestAdmission) -> None:
    tiers = {"auto": "normal", "default": "normal", "flex": "low", "priority": "high"}
    assert {tier: completion(admission, service_tier=tier).request.priority_class for tier in tiers} == tiers
    assert completion(admission, service_tier="priority", priority="high").request.priority_class == "high"
    assert completion(admission, service_tier="auto", priority="low").request.priority_class == "low"


def test_a_deadline_instead_of_a_timeout(admission: RequestAdmission) -> None:
    assert completion(admission, deadline_ms=NOW_MS + 1234).request.deadline_ms == NOW_MS + 1234


def test_a_developer_is_a_system_message(admission: RequestAdmission) -> None:
    developer = chat(admission, messages=[{"role": "developer", "content": "x"}])
    assert developer.request.payload == chat(admission, messages=[{"role": "system", "content": "x"}]).request.payload


def test_marks_of_what_to_cache_have_no_effect(admission: RequestAdmission) -> None:
    """As langchain-openai, openai-agents, litellm and dspy send them."""
    breakpoint_, control = {"prompt_cache_breakpoint": {"mode": "explicit"}}, {"cache_control": {"type": "ephemeral"}}
    marked = {"role": "user", "content": [{"type": "text", "text": "x", **breakpoint_, **control}], **control}
    plain = chat(admission, messages=[{"role": "user", "content": "x"}])
    assert chat(admission, messages=[marked]).request.payload == plain.request.payload
    for field, wrong in (
        ("messages.0.cache_control", {"role": "user", "content": "x", "cache_control": "ephemeral"}),
        (
            "messages.0.content.0.prompt_cache_breakpoint",
            {"role": "user", "content": [{"type": "text", "text": "x", "prompt_cache_breakpoint": True}]},
        ),
    ):
        error = refusal(admission, CHAT, {"model": "tiny", "messages": [wrong]})
        assert (error.status, error.param) == (400, field)


def test_an_answer_may_be_sent_back_as_the_sdk_dumps_it(admission: RequestAdmission) -> None:
    dumped = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "annotations": []}
    assert chat(admission, messages=[dumped, {"role": "user", "content": "y"}]).request.payload.prompt


def test_values_without_effect_are_accepted(admission: RequestAdmission) -> None:
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
        ("suffix", "x"),
        ("top_logprobs", 2),
        ("skip_special_tokens", False),
        ("continue_final_message", True),
        ("tools", [{}]),
        ("tool_choice", "required"),
        ("include_stop_str_in_output", 0),
        ("reasoning_effort", "low"),
    ],
)
def test_unsupported_parameters_are_refused_by_name(admission: RequestAdmission, name: str, value: object) -> None:
    error = refusal(admission, COMPLETIONS, {"model": "tiny", "prompt": "hi", name: value})
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
        ({"prompt": ["a", "\ud800"]}, "prompt.1"),
        ({"prompt": ["a", ""]}, "prompt.1"),
        ({"prompt": ["a", 1]}, "prompt.1"),
        ({"prompt": [[1], []]}, "prompt.1"),
        ({"prompt": [[1], ["a"]]}, "prompt.1"),
        ({"prompt": [[1], [2, -1]]}, "prompt.1.1"),
        ({"prompt": [[1], [2, 10**6]]}, "prompt.1.1"),
        ({"prompt": ["a"] * 129}, "prompt"),
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
        ({"seed": -(2**63) - 1}, "seed"),
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
        ({"priority": 1}, "priority"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"service_tier": "flex", "priority": "high"}, "service_tier"),
        ({"deadline_ms": NOW_MS}, "deadline_ms"),
        ({"deadline_ms": NOW_MS + 600_001}, "deadline_ms"),
        ({"deadline_ms": NOW_MS + 5, "timeout": 5}, "deadline_ms"),
        ({"store": True}, "store"),
        ({"store": 0}, "store"),
        ({"store": -0.0}, "store"),
        ({"metadata": "x"}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"safety_identifier": 5}, "safety_identifier"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": "x"}, "frequency_penalty"),
        ({"frequency_penalty": False}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": [[5, 1]]}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"05": 1}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"7": 1, "5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias.1000000"),
        ({"logit_bias": {str(n): 1 for n in range(301)}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"echo": True, "logprobs": 21}, "logprobs"),
        ({"echo": True, "logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"logprobs": 1, "max_tokens": 0}, "max_tokens"),
        ({"use_beam_search": True, "logit_bias": {"5": 1}}, "logit_bias"),
        ({"use_beam_search": True, "presence_penalty": 1}, "presence_penalty"),
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
def test_wrong_values_are_refused_by_name(admission: RequestAdmission, parameters: dict[str, Any], param: str) -> None:
    error = refusal(admission, COMPLETIONS, {"model": "tiny", "prompt": "hi", **parameters})
    assert (error.status, error.param) == (400, param)
    assert param in error.message
    assert "allowed" in error.message
    assert "Input should be" not in error.message, "pydantic's words, which speak of Python"
    json.dumps(error.body()).encode()


@pytest.mark.parametrize(
    ("parameters", "got"),
    [
        ({"prompt": ""}, "prompt: got ''"),
        ({"prompt": ["hi", ""]}, "prompt.1: got ''"),
        ({"logit_bias": {"7": 1, "5": 101}}, "logit_bias.5: got 101"),
        ({"logit_bias": {"5": 1, "1000000": 1}}, "logit_bias.1000000: got 1000000"),
        ({"stream_options": {"include_usage": True}}, "stream_options: got {'include_usage': True}"),
    ],
)
def test_a_wrong_value_is_quoted_as_written(admission: RequestAdmission, parameters: dict[str, Any], got: str) -> None:
    error = refusal(admission, COMPLETIONS, {"model": "tiny", "prompt": "hi", **parameters})
    assert error.message.startswith(f"{got}, allowed: ")


def calling(call: dict[str, Any] | None = None, arguments: object = "") -> dict[str, Any]:
    """A message with a call; the tiny model's template does not support calls."""
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [call or {"id": "a", "type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages.0"),
        ([{"content": "x"}], "messages.0.role"),
        ([{"role": "function", "content": "x"}], "messages.0.role"),
        ([{"role": "tool", "content": "x"}], "messages.0.tool_call_id"),
        ([{"role": "assistant", "tool_calls": {}}], "messages.0.content"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages.0.tool_calls"),
        ([calling({"type": "custom"})], "messages.0.tool_calls.0"),
        ([calling({"function": {}})], "messages.0.tool_calls.0.id"),
        ([calling({"id": "a", "function": {}})], "messages.0.tool_calls.0.function.name"),
        ([calling(arguments={})], "messages.0.tool_calls.0.function.arguments"),
        ([calling(arguments=None)], "messages.0.tool_calls.0.function.arguments"),
        ([calling(arguments="\ud83d")], "messages.0.tool_calls.0.function.arguments"),
        ([calling(arguments="[]")], "messages"),
        ([calling(arguments='{"a'), calling(arguments="{}")], "messages.1.tool_calls"),
        ([calling(arguments="{}")], "messages.0.tool_calls"),
        ([{"role": "assistant", "content": "x", "reasoning_content": 1}], "messages.0.reasoning_content"),
        ([{"role": "user", "content": "x", "reasoning_content": "y"}], "messages.0.reasoning_content"),
        ([{"role": ["user"], "content": "x"}], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": []}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content.0.type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
        ([{"role": "user", "content": "x", "name": 5}], "messages.0.name"),
        ([{"role": "user", "content": "x", "name": "x" * 257}], "messages.0.name"),
        ([{"role": "user", "content": "x", "nmae": None}], "messages.0.nmae"),
        ([{"role": "user", "content": "x", "nmae": ""}], "messages.0.nmae"),
        ([{"role": "user", "content": [{"type": "text", "text": "x", "cache": 1}]}], "messages.0.content.0.cache"),
        ([{"role": "user", "content": "\ud83d"}], "messages.0.content"),
    ],
)
def test_wrong_messages_are_refused_by_name(admission: RequestAdmission, messages: object, param: str) -> None:
    error = refusal(admission, CHAT, {"model": "tiny", "messages": messages})
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"[]", b"{", b'"x"', b"\xff", b"[" * 100_000, b'{"temperature": NaN}', b'{"temperature": 1e999}'),
        b'{"tools": [{"type": "function", "name": "f", "parameters": {"maximum": -1e999}}]}',
        b"{" + b'"a": 1' + b"0" * 400 + b".5}",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(admission: RequestAdmission, raw: bytes) -> None:
    error = refusal(admission, COMPLETIONS, raw)
    assert (error.status, error.param) == (400, "body")


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"model": "tiny", "prompt": "a", "prompt": "b"}', "prompt"),
        (b'{"model": "tiny", "prompt": "a", "seed": 1, "seed": null}', "seed"),
        (b'{"model": "tiny", "prompt": "a", "logit_bias": {"5": 1, "5": 0}}', "5"),
    ],
)
def test_duplicate_keys_are_refused(admission: RequestAdmission, raw: bytes, param: str) -> None:
    error = refusal(admission, COMPLETIONS, raw)
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    ("endpoint", "create", "own"),
    [
        (COMPLETIONS, openai.resources.Completions.create, {"model", "prompt"}),
        (CHAT, openai.resources.chat.Completions.create, {"model", "messages"}),
    ],
)
def test_null_is_accepted_for_every_parameter_of_the_official_client(
    admission: RequestAdmission, endpoint: GenerationEndpoint, create: Callable[..., Any], own: set[str]
) -> None:
    beside_the_body = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    nulls = dict.fromkeys(inspect.signature(create).parameters.keys() - beside_the_body - own)
    assert len(nulls) > 10
    ask = chat if endpoint is CHAT else completion
    assert ask(admission, **nulls).request.payload == ask(admission).request.payload


def test_every_part_of_a_message_of_the_official_client_may_be_empty(admission: RequestAdmission) -> None:
    names = {*openai.types.chat.ChatCompletionMessage.model_fields} - {"role", "content"}
    for kind in get_args(openai.types.chat.ChatCompletionMessageParam):
        names |= kind.__annotations__.keys() - {"role", "content"}
    assert len(names) > 5
    part = dict.fromkeys(openai.types.chat.ChatCompletionContentPartTextParam.__annotations__)
    message = {**dict.fromkeys(names), "role": "user", "content": [{**part, "type": "text", "text": "hi"}]}
    assert chat(admission, messages=[message]).request.payload == chat(admission).request.payload


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (COMPLETIONS, {"prompt": [5] * MAX_MODEL_LEN}, "prompt"),
        (COMPLETIONS, {"prompt": [5], "max_tokens": MAX_MODEL_LEN}, "max_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "世" * MAX_MODEL_LEN}]}, "messages"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 255},
            "max_completion_tokens",
        ),
    ],
)
def test_requests_beyond_the_context_are_refused(
    admission: RequestAdmission, endpoint: GenerationEndpoint, body: dict[str, Any], param: str
) -> None:
    error = refusal(admission, endpoint, {"model": "tiny", **body})
    assert (error.status, error.param, error.code) == (400, param, "context_length_exceeded")
    assert f"this model's maximum context length is {MAX_MODEL_LEN} tokens" in error.message  # litellm looks for it


def test_a_token_outside_the_vocabulary_is_another_error(admission: RequestAdmission) -> None:
    error = refusal(admission, COMPLETIONS, {"model": "tiny", "prompt": [5, 4000]})
    assert (error.param, error.code) == ("prompt.1", "invalid_request")


def test_the_idempotency_key_names_the_request(admission: RequestAdmission) -> None:
    body = {"model": "tiny", "prompt": "hi"}
    assert admit(admission, COMPLETIONS, body, idempotency_key="abc").request.id == "cmpl-abc"
    assert admit(admission, COMPLETIONS, body, idempotency_key="cmpl-abc").request.id == "cmpl-abc"
    with pytest.raises(InvalidRequest, match="Idempotency-Key"):
        admit(admission, COMPLETIONS, body, idempotency_key="a b")
    both = {**body, "request_id": "abc"}
    for same in ("abc", "cmpl-abc"):
        assert admit(admission, COMPLETIONS, both, idempotency_key=same).request.id == "cmpl-abc"
    with pytest.raises(InvalidRequest, match=r"Idempotency-Key: got 'def', allowed: the same as request_id \(abc\)"):
        admit(admission, COMPLETIONS, both, idempotency_key="def")


def test_valid_trace_context_is_passed_on(admission: RequestAdmission) -> None:
    body = {"model": "tiny", "prompt": "hi"}
    request = admit(admission, COMPLETIONS, body, traceparent=PARENT, tracestate="a=1").request
    assert (request.traceparent, request.tracestate) == (PARENT, "a=1")
    assert trace_headers({"traceparent": "nonsense", "tracestate": "a=1"}) == (None, None)
    assert trace_headers({"traceparent": PARENT, "tracestate": "x" * 513}) == (PARENT, None)


def test_a_model_without_chat_template_says_so(tmp_path: Path) -> None:
    model = str(write_tiny_model(tmp_path, chat=False))
    error = refusal(admission_of(model), CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]})
    assert (error.status, error.code) == (400, "no_chat_template")


def test_template_variables(tmp_path: Path) -> None:
    admission = admission_of(str(write_thinking_model(tmp_path)))
    tokenizer = Tokenizer.load(str(tmp_path))

    def written(**parameters: Any) -> str:
        return tokenizer.decode(chat(admission, **parameters).request.payload.prompt)

    assert written() == "user hi\n"
    named = [{"role": "user", "content": "hi", "name": "bob"}]
    assert written(messages=named) == "user:bob hi\n"
    assert written(chat_template_kwargs={"enable_thinking": False}) == "user hi\nno thinking"
    assert written(reasoning_effort="low") == "user hi\neffort low"
    assert written(reasoning_effort="max") == "user hi\neffort max"
    assert written(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "low"}) == "user hi\neffort low"
    refused: list[tuple[dict[str, Any], str]] = [
        ({"chat_template_kwargs": {"nonsense": 1}}, "chat_template_kwargs.nonsense"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"eos_token": "x"}}, "chat_template_kwargs.eos_token"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning_effort"),
    ]
    for parameters, param in refused:
        error = refusal(admission, CHAT, {"model": "tiny", "messages": named, **parameters})
        assert (error.status, error.param) == (400, param)


def test_an_effort_unknown_to_the_template_is_refused(admission: RequestAdmission) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "reasoning_effort": "low"}
    error = refusal(admission, CHAT, body)
    assert (error.status, error.param) == (400, "reasoning_effort")


def test_the_id_encodes_the_endpoint() -> None:
    assert endpoint_of("chatcmpl-x") is CHAT
    assert endpoint_of("cmpl-x") is COMPLETIONS
    assert endpoint_of("chatcmplx") is endpoint_of("anything") is COMPLETIONS


@pytest.mark.parametrize("letter", [" ", "a", "\u00e9", '"', "["])
def test_text_too_long_for_any_context_is_refused_by_its_length(
    admission: RequestAdmission, monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    """A tokenizer needs seconds and gigabytes for it, and a template needs time too."""
    for kind, name in ((Tokenizer, "encode"), (Tokenizer, "encode_chat"), (ChatTemplate, "render")):
        monkeypatch.setattr(kind, name, lambda *_, name=name, **__: pytest.fail(f"{name} was called"))
    most = (MAX_MODEL_LEN - 1) * admission._tokenizer.longest_token
    half = letter * (most // 2 + 1)
    refused = [
        refusal(admission, COMPLETIONS, {"model": "tiny", "prompt": half * 2}),
        refusal(admission, CHAT, {"model": "tiny", "messages": [{"role": "user", "content": half}] * 2}),
    ]
    for error, param in zip(refused, ("prompt", "messages"), strict=True):
        assert (error.status, error.param, error.code) == (400, param, "context_length_exceeded")
        assert f"{param}: got '{2 * len(half)} characters', allowed: at most {most} characters" in error.message
        assert "this model's maximum context length is" in error.message


def test_oversized_template_output_is_not_tokenized(
    admission: RequestAdmission, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChatTemplate, "render", lambda *_, **__: RenderedChat((Segment("x" * 10**6),)))
    monkeypatch.setattr(Tokenizer, "encode_chat", lambda *_, **__: pytest.fail("encode_chat was called"))
    error = refusal(admission, CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "x"}]})
    assert (error.param, error.code) == ("messages", "context_length_exceeded")


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda: b"{" + b",".join(b'"%d":1' % number for number in range(350_000)) + b"}", "names and texts"),
        (lambda: b'{"model":"tiny","prompt":[' + b",".join([b'""'] * 1_000_000) + b"]}", "names and texts"),
        (lambda: b'{"model":"tiny","prompt":[' + b",".join([b"[]"] * 1_000_000) + b"]}", "maps and arrays"),
        (lambda: b'{"model":"tiny","prompt":[' + b",".join([b"1e5"] * 1_000_000) + b"]}", "values"),
    ],
    ids=["names", "texts", "arrays", "numbers"],
)
def test_a_body_with_too_many_values_is_refused_before_parsing(
    admission: RequestAdmission, monkeypatch: pytest.MonkeyPatch, made: Callable[[], bytes], what: str
) -> None:
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    error = refusal(admission, COMPLETIONS, made())
    assert (error.status, error.param) == (400, "body")
    assert f"more than {error.message.rsplit(' ', 1)[1]} {what}" in error.message
