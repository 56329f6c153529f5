"""A request entry: accepted values are transferred unchanged, refused ones are named, and nothing else can happen."""

import json
import struct
import time
from collections.abc import Mapping
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from orcastream.schemas import limits
from orcastream.schemas.codec import Form, decode
from orcastream.schemas.constraint import Constraint
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.schemas.explain import MAX_COMPLAINTS, first_complaint
from orcastream.schemas.keys import CLASSES
from orcastream.schemas.request import GenerationRequest, Payload, parse_payload
from orcastream.schemas.sampling import SamplingParams

NOW_MS = 1_800_000_000_000
TOKENS = st.integers(0, limits.MAX_TOKEN_ID)
NAMES = st.from_regex(limits.NAME_PATTERN, fullmatch=True)
HEADERS = st.none() | st.text(min_size=1, max_size=limits.MAX_TRACE_HEADER_LENGTH)


SLOS_MS = st.none() | st.floats(0, limits.MAX_SLO_MS, exclude_min=True)


CONSTRAINTS = st.one_of(
    st.builds(Constraint, json_schema=st.text(min_size=1)),
    st.builds(Constraint, regex=st.text(min_size=1)),
    st.builds(Constraint, choice=st.lists(st.text(min_size=1), min_size=1, max_size=3).map(tuple)),
    st.builds(Constraint, grammar=st.text(min_size=1)),
)


@st.composite
def beam_searches(draw: st.DrawFn) -> Payload:
    n = draw(st.integers(1, limits.MAX_CHOICES))
    return Payload(
        prompt=(1,),
        n=n,
        best_of=draw(st.none() | st.integers(n, limits.MAX_CHOICES)),
        use_beam_search=True,
        length_penalty=draw(st.floats(-limits.MAX_LENGTH_PENALTY, limits.MAX_LENGTH_PENALTY)),
        early_stopping=draw(st.booleans()),
        temperature=0,
    )


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    max_tokens = draw(st.none() | st.integers(1, limits.MAX_OUTPUT_TOKENS))
    n = draw(st.integers(1, limits.MAX_CHOICES))
    constraint = draw(st.none() | CONSTRAINTS)
    return Payload(
        prompt=tuple(draw(st.lists(TOKENS, min_size=1, max_size=20))),
        max_tokens=max_tokens,
        min_tokens=0 if constraint else draw(st.integers(0, max_tokens or limits.MAX_OUTPUT_TOKENS)),
        temperature=draw(st.floats(0, 100)),
        top_k=draw(st.integers(0, limits.MAX_TOKEN_ID)),
        top_p=draw(st.floats(0, 1, exclude_min=True)),
        min_p=draw(st.floats(0, 1)),
        seed=draw(st.none() | st.integers(limits.MIN_SEED, limits.MAX_SEED)),
        stop_token_ids=tuple(draw(st.lists(TOKENS, max_size=3))),
        ignore_eos=constraint is None and draw(st.booleans()),
        logprobs=draw(st.none() | st.integers(0, limits.MAX_LOGPROBS)),
        n=n,
        best_of=draw(st.none() | st.integers(n, limits.MAX_CHOICES)),
        stop=tuple(draw(st.lists(st.text(min_size=1, max_size=10), max_size=3))),
        constraint=constraint,
        tenant=draw(NAMES),
        adapter=draw(st.just("") | NAMES),
        cache_salt=draw(st.text(max_size=limits.MAX_CACHE_SALT_LENGTH)),
        ttft_slo_ms=draw(SLOS_MS),
        tbt_slo_ms=draw(SLOS_MS),
        on_disconnect=draw(st.sampled_from(("cancel", "continue"))),
    )


REQUESTS = st.builds(
    GenerationRequest,
    id=st.from_regex(limits.ID_PATTERN, fullmatch=True),
    payload=payloads() | beam_searches(),
    deadline_ms=st.integers(0, NOW_MS + limits.MAX_DEADLINE_AHEAD_MS),
    priority_class=st.sampled_from(CLASSES),
    form=st.sampled_from(Form),
    traceparent=HEADERS,
    tracestate=HEADERS,
)


def as_read(fields: Mapping[str, str | bytes]) -> dict[bytes, bytes]:
    """Fields as Redis gives them back."""
    return {name.encode(): value.encode() if isinstance(value, str) else value for name, value in fields.items()}


def entry(payload: bytes = b'{"prompt":[1]}', **changes: bytes | None) -> dict[bytes, bytes]:
    """Return a valid entry with changes; None removes a field."""
    fields = {b"id": b"r1", b"v": b"1", b"deadline": str(NOW_MS).encode(), b"payload": payload}
    for name, value in changes.items():
        if value is None:
            del fields[name.encode()]
        else:
            fields[name.encode()] = value
    return fields


def read(fields: Mapping[bytes, bytes]) -> GenerationRequest:
    return GenerationRequest.from_fields(fields, stream_class="normal", now_ms=NOW_MS)


@given(REQUESTS)
def test_written_entries_are_read_unchanged(request: GenerationRequest) -> None:
    fields = as_read(request.fields())
    assert GenerationRequest.from_fields(fields, stream_class=request.priority_class, now_ms=NOW_MS) == request


@given(st.lists(TOKENS, min_size=1, max_size=50))
def test_both_forms_of_a_prompt_are_the_same_request(ids: list[int]) -> None:
    packed = read(entry(msgpack.packb({"prompt": struct.pack(f"<{len(ids)}I", *ids)})))
    listed = read(entry(msgpack.packb({"prompt": ids})))
    spelled = read(entry(json.dumps({"prompt": ids}).encode()))
    assert packed.payload == listed.payload == spelled.payload
    assert packed.payload.prompt == tuple(ids)
    assert (packed.form, spelled.form) == (Form.MSGPACK, Form.JSON)


def test_defaults_are_not_transmitted() -> None:
    request = read(entry())
    assert decode(bytes(request.fields()["payload"])) == {"prompt": [1]}  # type: ignore[arg-type]
    assert (request.priority_class, request.traceparent, request.tracestate) == ("normal", None, None)


def test_a_passed_deadline_is_not_an_error_of_form() -> None:
    assert read(entry(deadline=b"0")).deadline_ms == 0
    read(entry(deadline=str(NOW_MS + limits.MAX_DEADLINE_AHEAD_MS).encode()))


def test_sampling_is_the_part_that_the_engine_uses() -> None:
    sampling = parse_payload({"prompt": [1], "n": 2, "temperature": 0, "stop": ["x"], "seed": 7}).sampling
    assert type(sampling) is SamplingParams
    assert sampling == SamplingParams(temperature=0, seed=7)


def test_a_beam_search_without_a_temperature_is_greedy() -> None:
    payload = parse_payload({"prompt": [1], "use_beam_search": True, "n": 2, "max_tokens": 5})
    assert payload.sampling == SamplingParams(temperature=0, max_tokens=5)
    assert (payload.num_candidates, payload.is_ranked) == (2, True)


@pytest.mark.parametrize(
    ("changes", "num_candidates", "is_ranked"),
    [({}, 1, False), ({"n": 3}, 3, False), ({"n": 2, "best_of": 2}, 2, False), ({"n": 2, "best_of": 5}, 5, True)],
)
def test_choices_are_ranked_if_there_are_more_candidates(
    changes: dict[str, int], num_candidates: int, is_ranked: bool
) -> None:
    payload = parse_payload({"prompt": [1], **changes})
    assert (payload.num_candidates, payload.is_ranked) == (num_candidates, is_ranked)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (entry(id=None), "id: got None, allowed: a value: the field is required"),
        (entry(id=b""), "id: got '', allowed: 1 to 128 characters of A-Z a-z 0-9 _ . -"),
        (entry(id=b"a:b"), "id: got 'a:b', allowed: 1 to 128 characters of A-Z a-z 0-9 _ . -"),
        (entry(id=b"a\n"), "id: got 'a\\n', allowed: 1 to 128 characters of A-Z a-z 0-9 _ . -"),
        (entry(id=b"\xff"), "id: got b'\\xff', allowed: UTF-8 text"),
        (entry(v=None), "v: got None, allowed: a value: the field is required"),
        (entry(v=b"2"), "v: got '2', allowed: 1"),
        (entry(colour=b"red"), "colour: got b'red', allowed: only class, deadline, id, payload, traceparent, "),
        (entry(**{"class": b"high"}), "class: got 'high', allowed: normal, the class of its stream (of realtime, "),
        (entry(deadline=None), "deadline: got None, allowed: a value: the field is required"),
        (entry(deadline=b""), "deadline: got '', allowed: milliseconds of Unix time, at most 604800000 ms ahead"),
        (entry(deadline=b"-1"), "deadline: got '-1', allowed: milliseconds of Unix time"),
        (entry(deadline=b"1e3"), "deadline: got '1e3', allowed: milliseconds of Unix time"),
        (entry(deadline="²".encode()), "deadline: got '²', allowed: milliseconds of Unix time"),
        (entry(deadline=b"9" * 5000), "deadline: got '9999"),
        (entry(deadline=str(NOW_MS + limits.MAX_DEADLINE_AHEAD_MS + 1).encode()), "deadline: got '1800604800001'"),
        (entry(payload=None), "payload: got None, allowed: one msgpack map or JSON object"),  # type: ignore[arg-type]
        (entry(b"\xc0"), "payload: got None, allowed: one msgpack map or JSON object with string keys"),
        (entry(b"{" + b" " * limits.MAX_PAYLOAD_BYTES + b"}"), "payload: got '4194306 bytes', allowed: at most 41943"),
    ],
)
def test_bad_entries(fields: Mapping[bytes, bytes], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(fields)
    assert str(caught.value).startswith(message)
    expected = ErrorCode.UNSUPPORTED_VERSION if fields.get(b"v") == b"2" else ErrorCode.INVALID_REQUEST
    assert caught.value.code is expected


@pytest.mark.parametrize("header", [b"x" * 513, b"\xff", b""])
def test_an_unusable_trace_context_is_dropped_not_its_request(header: bytes) -> None:
    parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    request = read(entry(traceparent=parent, tracestate=header))
    assert (request.traceparent, request.tracestate) == (parent.decode(), None)
    assert read(entry(traceparent=header)).traceparent is None


def test_id_and_version_come_first() -> None:
    """An error report needs the id to find the reply log, and must not judge a later version by this one."""
    with pytest.raises(InvalidRequest, match=r"^id:"):
        read({b"v": b"9", b"x": b"y"})
    with pytest.raises(InvalidRequest, match=r"^v:"):
        read({b"id": b"r1", b"v": b"9", b"x": b"y", b"payload": b"\xc1"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": []}, "prompt: got [], allowed: at least 1 item"),
        ({"prompt": None}, "prompt: got None, allowed: an array"),
        ({"prompt": "hello"}, "prompt: got 'hello', allowed: an array"),
        ({"prompt": {"a": 1}}, "prompt: got {'a': 1}, allowed: an array"),
        ({"prompt": b"abc"}, "prompt: got b'abc', allowed: a binary prompt is little-endian uint32: its length must "),
        ({"prompt": b""}, "prompt: got b'', allowed: at least 1 item"),
        ({"prompt": [-1]}, "prompt.0: got -1, allowed: at least 0"),
        ({"prompt": [1, 2**32]}, "prompt.1: got 4294967296, allowed: at most 4294967295"),
        ({"prompt": [1.0]}, "prompt.0: got 1.0, allowed: an integer"),
        ({"prompt": [True]}, "prompt.0: got True, allowed: an integer"),
        ({"prompt": ["1"]}, "prompt.0: got '1', allowed: an integer"),
        ({"prompt": [[1]]}, "prompt.0: got [1], allowed: an integer"),
        ({"prompt": [1] * 1_000_001}, "prompt: got [1, 1, 1, 1, 1, 1, ...], allowed: at most 1000000 items"),
        ({"n": 0}, "n: got 0, allowed: at least 1"),
        ({"n": 17}, "n: got 17, allowed: at most 16"),
        ({"n": None}, "n: got None, allowed: an integer"),
        ({"max_tokens": -1}, "max_tokens: got -1, allowed: at least 0"),
        ({"max_tokens": 0, "best_of": 2}, "max_tokens: got 0, allowed: at least 1 where choices are ranked"),
        ({"max_tokens": 0, "use_beam_search": True}, "max_tokens: got 0, allowed: at least 1 where choices are ranked"),
        ({"max_tokens": 0, "min_tokens": 1}, "min_tokens: got 1, allowed: at most max_tokens (0)"),
        ({"prompt_logprobs": -1}, "prompt_logprobs: got -1, allowed: at least 0"),
        ({"prompt_logprobs": 21}, "prompt_logprobs: got 21, allowed: at most 20"),
        ({"prompt_logprobs": True}, "prompt_logprobs: got True, allowed: an integer"),
        ({"max_tokens": 1_000_001}, "max_tokens: got 1000001, allowed: at most 1000000"),
        ({"max_tokens": 3, "min_tokens": 5}, "min_tokens: got 5, allowed: at most max_tokens (3)"),
        ({"min_tokens": -1}, "min_tokens: got -1, allowed: at least 0"),
        ({"temperature": -0.1}, "temperature: got -0.1, allowed: at least 0"),
        ({"temperature": 100.1}, "temperature: got 100.1, allowed: at most 100"),
        ({"temperature": float("nan")}, "temperature: got nan, allowed: a finite number"),
        ({"temperature": float("inf")}, "temperature: got inf, allowed: a finite number"),
        ({"temperature": True}, "temperature: got True, allowed: a number"),
        ({"temperature": "1"}, "temperature: got '1', allowed: a number"),
        ({"top_k": -1}, "top_k: got -1, allowed: at least 0"),
        ({"top_k": 2**64}, "top_k: got 18446744073709551616, allowed: at most 4294967295"),
        ({"top_p": 0}, "top_p: got 0, allowed: more than 0"),
        ({"top_p": 1.01}, "top_p: got 1.01, allowed: at most 1"),
        ({"min_p": -0.01}, "min_p: got -0.01, allowed: at least 0"),
        ({"min_p": 1.01}, "min_p: got 1.01, allowed: at most 1"),
        ({"seed": -(2**63) - 1}, "seed: got -9223372036854775809, allowed: at least -9223372036854775808"),
        ({"seed": 2**63}, "seed: got 9223372036854775808, allowed: at most 9223372036854775807"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids: got [1, 1, 1, 1, 1, 1, ...], allowed: at most 64 items"),
        ({"stop_token_ids": [2**32]}, "stop_token_ids.0: got 4294967296, allowed: at most 4294967295"),
        ({"ignore_eos": 1}, "ignore_eos: got 1, allowed: true or false"),
        ({"logprobs": 21}, "logprobs: got 21, allowed: at most 20"),
        ({"logprobs": -1}, "logprobs: got -1, allowed: at least 0"),
        ({"stop": "x"}, "stop: got 'x', allowed: an array"),
        ({"stop": [""]}, "stop.0: got '', allowed: at least 1 character"),
        ({"stop": ["x" * 257]}, "stop.0: got 'xxx"),
        ({"stop": ["x"] * 17}, "stop: got ['x', 'x', 'x', 'x', 'x', 'x', ...], allowed: at most 16 items"),
        ({"stop": [1]}, "stop.0: got 1, allowed: text"),
        ({"stop": ["\ud800"]}, "stop.0: got '\\ud800', allowed: UTF-8 text without lone surrogates"),
        ({"tenant": ""}, "tenant: got '', allowed: 1 to 128 characters of A-Z a-z 0-9 _ . - /"),
        ({"tenant": "a\n"}, "tenant: got 'a\\n', allowed: 1 to 128 characters of A-Z a-z 0-9 _ . - /"),
        ({"constraint": []}, "constraint: got [], allowed: an object"),
        ({"constraint": {}}, "constraint: got {}, allowed: exactly one of json_schema, regex, choice, grammar"),
        (
            {"constraint": {"regex": "a", "grammar": "a"}},
            "constraint: got {'grammar': 'a', 'regex': 'a'}, allowed: exactly one of json_schema, regex, choice,",
        ),
        ({"constraint": {"regex": ""}}, "constraint.regex: got '', allowed: at least 1 character"),
        (
            {"constraint": {"regex": "a"}, "ignore_eos": True},
            "ignore_eos: got True, allowed: false with a constraint, which says where the answer may end",
        ),
        (
            {"constraint": {"regex": "a"}, "min_tokens": 2},
            "min_tokens: got 2, allowed: 0 with a constraint, which says where the answer may end",
        ),
        ({"on_disconnect": "ignore"}, "on_disconnect: got 'ignore', allowed: 'cancel' or 'continue'"),
        ({"beam_width": 3}, "beam_width: got 3, allowed: no such parameter exists"),
        ({"best_of": 17}, "best_of: got 17, allowed: at most 16"),
        ({"best_of": 2, "n": 3}, "best_of: got 2, allowed: at least n (3)"),
        ({"use_beam_search": 1}, "use_beam_search: got 1, allowed: true or false"),
        ({"length_penalty": 10.5, "use_beam_search": True}, "length_penalty: got 10.5, allowed: at most 10"),
        ({"length_penalty": 0.5}, "length_penalty: got 0.5, allowed: 1.0 without use_beam_search"),
        ({"early_stopping": True}, "early_stopping: got True, allowed: False without use_beam_search"),
        ({"early_stopping": "never", "use_beam_search": True}, "early_stopping: got 'never', allowed: true or false"),
        *(
            ({name: value, "use_beam_search": True}, f"{name}: got {value!r}, allowed: nothing with use_beam_search")
            for name, value in {
                "top_k": 5,
                "top_p": 0.5,
                "min_p": 0.1,
                "seed": 0,
                "logprobs": 0,
                "prompt_logprobs": 0,
            }.items()
        ),
        ({"temperature": 1.0, "use_beam_search": True}, "temperature: got 1.0, allowed: 0 or nothing with use_beam_"),
        ({"stop": ["x"], "use_beam_search": True}, "stop: got ('x',), allowed: none with use_beam_search"),
        ({"adapter": "a b"}, "adapter: got 'a b', allowed: 1 to 128 characters of A-Z a-z 0-9 _ . - /"),
        ({"adapter": None}, "adapter: got None, allowed: text"),
        ({"cache_salt": "x" * 129}, "cache_salt: got 'xxx"),
        ({"cache_salt": None}, "cache_salt: got None, allowed: text"),
        ({"ttft_slo_ms": 0}, "ttft_slo_ms: got 0, allowed: more than 0"),
        ({"tbt_slo_ms": 3_600_001}, "tbt_slo_ms: got 3600001, allowed: at most 3600000"),
        ({"\ud800": 3}, "payload: got '\\ud800', allowed: UTF-8 text without lone surrogates"),
    ],
)
def test_bad_payloads(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_payload({"prompt": [1], **changes})
    assert str(caught.value).startswith(message)


def test_the_prompt_is_required() -> None:
    with pytest.raises(InvalidRequest, match=r"^prompt: got None, allowed: a value: the field is required$"):
        parse_payload({})


def test_a_million_errors_cost_as_much_as_one() -> None:
    start = time.process_time()
    for body in ({"prompt": [-1] * 1_000_000}, {"prompt": [1], "stop": [1] * 1_000_000}):
        with pytest.raises(InvalidRequest):
            parse_payload(body)
    assert time.process_time() - start < 2


def test_of_many_unknown_parameters_one_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"^p0: got 0, allowed: no such parameter exists$"):
        parse_payload({f"p{number}": number for number in range(400_000)})


def test_of_countless_errors_none_is_described() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(list[int]).validate_python(["x"] * (MAX_COMPLAINTS + 1))
    assert str(first_complaint(caught.value, "body")) == "body: got '1001 errors', allowed: none"


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=8,
)
NAMED = st.dictionaries(st.sampled_from([*Payload.model_fields, "x"]) | st.text(st.characters()), JSON_LIKE, max_size=6)


@given(NAMED)
def test_arbitrary_bodies(body: dict[str, Any]) -> None:
    for candidate in (body, {"prompt": [1], **body}):
        try:
            assert isinstance(parse_payload(candidate), Payload)
        except InvalidRequest as error:
            str(error).encode()


FIELD_NAMES = st.sampled_from([b"id", b"v", b"class", b"deadline", b"traceparent", b"tracestate", b"payload"])
FIELD_VALUES = st.binary(max_size=64) | st.sampled_from([b"1", b"r1", b"normal", b"{}", b'{"prompt":[1]}', b"\x80"])


@given(st.dictionaries(FIELD_NAMES | st.binary(max_size=8), FIELD_VALUES))
def test_arbitrary_entries(changes: dict[bytes, bytes]) -> None:
    for fields in (changes, {**entry(), **changes}):
        try:
            assert read(fields).id == fields[b"id"].decode()
        except InvalidRequest as error:
            str(error).encode()
