"""Reply log entries: both forms round-trip, and a foreign or broken entry is an InvalidRequest, never a crash."""

import copy
import functools
import json
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.schemas.codec import Form, decode, encode, form_of
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.schemas.events import (
    TOKEN_PARTS,
    Ending,
    Event,
    EventId,
    Output,
    PromptRun,
    Run,
    Started,
    Terminal,
    Usage,
    decode_event,
    encode_event,
    encode_payload,
)
from orcastream.schemas.stopping import FinishReason

COUNTS = st.integers(0, 1_000_000)
TOKENS = st.integers(0, 2**32 - 1)
LOGPROBS = st.floats(-1000, 0)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    tokens = tuple(draw(st.lists(TOKENS, min_size=1, max_size=5)))
    items = None
    if draw(st.booleans()):
        items = tuple([draw(LOGPROBS), [[draw(TOKENS), draw(LOGPROBS)]]] for _ in tokens)
    return Run(draw(st.integers(0, 15)), draw(COUNTS), tokens, items)


RUNS = st.lists(runs(), max_size=3).map(tuple)
ENDINGS = st.builds(
    Ending,
    finish_reason=st.none() | st.sampled_from(FinishReason),
    tokens=COUNTS,
    text_length=st.none() | COUNTS,
    stop=st.none() | st.text(min_size=1) | TOKENS,
)
USAGES = st.builds(Usage, COUNTS, COUNTS, COUNTS)
STARTED = st.builds(
    Started,
    worker=st.text(),
    model=st.text(),
    tenant=st.text(),
    priority_class=st.text(),
    entry=st.text(),
    seed=st.integers(-(2**63), 2**63 - 1),
    prompt_tokens=COUNTS,
    n=st.integers(1, 16),
    traceparent=st.none() | st.text(min_size=1),
    prompt_logprobs=st.none() | st.integers(0, 20),
)


@st.composite
def prompts(draw: st.DrawFn) -> PromptRun:
    position, tokens = draw(st.integers(0, 2) | COUNTS), tuple(draw(st.lists(TOKENS, min_size=1, max_size=5)))
    places = range(position, position + len(tokens))
    items = [None if not place else [draw(LOGPROBS), []] for place in places]
    ranks = tuple(None if not place else draw(st.integers(1, 2**32)) for place in places)
    return PromptRun(position, tokens, tuple(items), draw(st.sampled_from([None, ranks])))


OUTPUTS = st.builds(Output, RUNS)
FINISHED = st.builds(
    Terminal,
    endings=st.lists(ENDINGS, min_size=1, max_size=2).map(tuple),
    usage=USAGES,
    runs=RUNS,
    timings=st.dictionaries(st.text(), st.floats(0, 1e9)),
)
FAILED = st.builds(
    Terminal,
    endings=st.lists(ENDINGS, max_size=2).map(tuple),
    usage=USAGES,
    runs=RUNS,
    error=st.sampled_from(ErrorCode),
    message=st.text(min_size=1),
    field_name=st.none() | st.text(min_size=1),
)
EVENTS: st.SearchStrategy[Event] = st.one_of(STARTED, prompts(), OUTPUTS, FINISHED, FAILED)


def as_read(flat: tuple[str, str, str, bytes]) -> dict[bytes, bytes]:
    """Fields as Redis gives them back."""
    return {flat[0].encode(): flat[1].encode(), flat[2].encode(): flat[3]}


@given(EVENTS, st.sampled_from(Form))
def test_round_trip(event: Event, form: Form) -> None:
    fields = as_read(encode_event(event, form))
    assert form_of(fields[b"payload"]) is form
    assert decode_event(fields) == event


@pytest.mark.parametrize("position", [0, 127, 255, 65_535, 65_536, 2**31 - 1])
@pytest.mark.parametrize("token", [0, 127, 65_535, 65_536, 151_935, 2**32 - 1])
def test_a_token_packed_at_once_is_that_token(position: int, token: int) -> None:
    before_position, before_token = TOKEN_PARTS
    payload = before_position + position.to_bytes(4, "big") + before_token + token.to_bytes(4, "big")
    packed = {b"type": b"tokens", b"payload": payload}
    assert decode_event(packed) == Output((Run(0, position, (token,)),))


def test_types() -> None:
    terminal = Terminal((), Usage(1, 0))
    assert encode_event(terminal, Form.JSON)[:3] == ("type", "finished", "payload")
    failed = Terminal((), Usage(1, 0), error=ErrorCode.LOST)
    assert encode_event(failed, Form.JSON)[1] == "error"
    assert decode(encode_event(failed, Form.JSON)[3])["error"] == {"code": "lost", "message": "lost"}
    assert encode_event(Output((Run(0, 0, (5,)),)), Form.JSON) == (
        "type",
        "tokens",
        "payload",
        b'{"output":[{"choice":0,"position":0,"tokens":[5]}]}',
    )


@pytest.mark.parametrize("form", Form)
@given(field=st.text(st.characters()), value=st.text(st.characters()))
def test_any_invalid_request_can_be_reported(form: Form, field: str, value: str) -> None:
    """The message quotes the input, and the input may be anything: lone surrogates cannot be written as UTF-8."""
    error = InvalidRequest(field + "\udc80", value + "\ud800", "something else")
    event = Terminal((), Usage(0, 0), error=error.code, message=str(error), field_name=error.field)
    assert decode_event(as_read(encode_event(event, form))) == event


def test_unknown_fields_are_left_out() -> None:
    """A later version may add fields; a reader of this version continues."""
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 3, "draft_tokens": 4}
    wire = {"output": [], "choices": [{"tokens": 2, "new": 1}], "usage": usage, "timings": {}, "new": [1]}
    event = decode_event({b"type": b"finished", b"payload": encode(wire, Form.MSGPACK), b"new": b"1"})
    assert event == Terminal((Ending(None, 2),), Usage(1, 2, 3))


@pytest.mark.parametrize("message", [None, "told by a later version"])
def test_an_unknown_end_of_a_later_version_is_an_end(message: str | None) -> None:
    """A reader that skipped it would have the request computed again, after its end."""
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    choices = [{"tokens": 2, "finish_reason": "content_filter"}]
    wire: dict[str, Any] = {"output": [], "choices": choices, "usage": usage, "timings": {}}
    endings = (Ending(FinishReason.STOP, 2),)
    finished = decode_event({b"type": b"finished", b"payload": encode(wire, Form.JSON)})
    assert finished == Terminal(endings, Usage(1, 2))
    wire["error"] = {"code": "moved_away"} | ({} if message is None else {"message": message})
    told = "moved_away" if message is None else f"moved_away: {message}"
    failed = decode_event({b"type": b"error", b"payload": encode(wire, Form.JSON)})
    assert failed == Terminal(endings, Usage(1, 2), error=ErrorCode.ENGINE_ERROR, message=told)


@pytest.mark.parametrize(
    ("kind", "wire"),
    [
        (b"tokens", {}),
        (b"tokens", {"output": 1}),
        (b"tokens", {"output": ["x"]}),
        (b"tokens", {"output": [[1, 2]]}),
        (b"tokens", {"output": [{"choice": 0, "position": 0}]}),
        (b"tokens", {"output": [{"choice": 0, "position": 0, "tokens": 5}]}),
        (b"started", {"worker": "w"}),
        (b"finished", {"output": []}),
        (b"finished", {"output": [], "choices": ["x"], "usage": {}, "timings": {}}),
        (b"finished", {"output": [], "choices": [], "usage": {}, "timings": {}}),
        (b"finished", {"output": [], "choices": [], "usage": [], "timings": {}}),
        (b"error", {"output": [], "choices": [], "usage": {}, "timings": {}, "error": "x"}),
        (b"error", {"output": [], "choices": [], "usage": {}, "timings": {}, "error": {"code": "new"}}),
        (b"prompt", {"position": 0, "tokens": [], "logprobs": []}),
        (b"prompt", {"position": 0, "tokens": [5]}),
        (b"prompt", {"position": 0, "tokens": [5], "logprobs": []}),
        (b"prompt", {"position": 0, "tokens": [5], "logprobs": [[-1.0, []]]}),
        (b"prompt", {"position": 1, "tokens": [5], "logprobs": [None]}),
        (b"prompt", {"position": 1, "tokens": [5], "logprobs": [[-1.0]]}),
        (b"", {}),
        (b"\xff", {}),
        (b"progress", {"output": []}),
    ],
)
def test_refused(kind: bytes, wire: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        decode_event({b"type": kind, b"payload": msgpack.packb(wire)})


USAGE = {"prompt_tokens": 1, "completion_tokens": 0, "cached_tokens": 0}
GOOD: dict[str, dict[str, Any]] = {
    "started": {
        "worker": "w",
        "model": "m",
        "tenant": "t",
        "class": "normal",
        "entry": "normal 1-1",
        "seed": 1,
        "prompt_tokens": 1,
        "n": 1,
        "traceparent": "00-1",
        "prompt_logprobs": 2,
    },
    "prompt": {"position": 0, "tokens": [5, 6], "logprobs": [None, [-0.5, [[6, -0.5]]]], "ranks": [None, 1]},
    "tokens": {"output": [{"choice": 0, "position": 0, "tokens": [5], "logprobs": [[-0.5, []]]}]},
    "finished": {
        "output": [],
        "choices": [{"finish_reason": "stop", "tokens": 0, "text_length": 0, "stop": "x"}],
        "usage": USAGE,
        "timings": {"total_ms": 1.5},
    },
    "error": {
        "output": [],
        "choices": [],
        "usage": USAGE,
        "timings": {},
        "error": {"code": "lost", "message": "gone", "field": "prompt"},
    },
}
WRONG: dict[type, list[Any]] = {
    str: [5, 1.5, True, [], {}, [[]], "\ud800"],
    int: ["1", -1, -(2**63) - 1, 2**63, 0.5, True, None, [], {}],
    float: ["1", -1, 10**400, True, None, [], float("nan"), float("inf")],
    list: [5, "x", {"a": 1}, [[]], [None]],
    dict: [5, "x", []],
}
"""By the type of the right value, what must not stand in its place."""


def places(wire: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the path of every non-null value in an event with only these; log probabilities are passed on unread."""
    inner = wire.items() if isinstance(wire, dict) else enumerate(wire) if isinstance(wire, list) else ()
    for key, value in inner:
        if isinstance(value, dict | list) and value:
            yield from places(value, (*path, key))
        elif "logprobs" not in path and value is not None:
            yield (*path, key)


@pytest.mark.parametrize("kind", GOOD)
def test_every_value_has_the_type_of_the_contract(kind: str) -> None:
    assert decode_event({b"type": kind.encode(), b"payload": encode(GOOD[kind], Form.JSON)}).type == kind
    for *outer, last in places(GOOD[kind]):
        wire = copy.deepcopy(GOOD[kind])
        place = functools.reduce(lambda value, key: value[key], outer, wire)
        for wrong in WRONG[type(place[last])]:
            if (last, wrong) in (("stop", 5), ("text_length", None), ("prompt_logprobs", None), ("seed", -1)):
                continue  # a stop token; none; any sign
            place[last] = wrong
            with pytest.raises(InvalidRequest, match=r"^payload"):
                decode_event({b"type": kind.encode(), b"payload": json.dumps(wire).encode()})


def test_there_is_one_logprob_for_each_token() -> None:
    for logprobs in ([], [1, 2], {"a": 1}, "x", 5):
        wire = {"output": [{"choice": 0, "position": 0, "tokens": [5], "logprobs": logprobs}]}
        with pytest.raises(InvalidRequest):
            decode_event({b"type": b"tokens", b"payload": msgpack.packb(wire)})


def test_there_is_one_rank_for_each_token_but_the_prompts_first() -> None:
    for ranks in ([], [None], [1, 1], [None, None], [None, 0], [None, 2**32 + 1], {"a": 1}, "xy", 5):
        with pytest.raises(InvalidRequest):
            decode_event({b"type": b"prompt", b"payload": encode({**GOOD["prompt"], "ranks": ranks}, Form.JSON)})
    older = {name: value for name, value in GOOD["prompt"].items() if name != "ranks"}
    event = decode_event({b"type": b"prompt", b"payload": encode(older, Form.JSON)})
    assert isinstance(event, PromptRun)
    assert (event.ranks, event.to_wire()) == (None, older)


def test_a_reply_finishes_with_its_choices() -> None:
    with pytest.raises(InvalidRequest):
        decode_event({b"type": b"finished", b"payload": encode({**GOOD["finished"], "choices": []}, Form.JSON)})


WIRES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["output", "choices", "usage", "timings", "error", "code", "tokens", "choice", "position"]),
            inner,
            max_size=9,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from([b"started", b"tokens", b"finished", b"error", b"other"]), WIRES, st.binary(max_size=30))
def test_arbitrary_entries(kind: bytes, wire: object, junk: bytes) -> None:
    for payload in (msgpack.packb(wire), junk):
        try:
            decode_event({b"type": kind, b"payload": payload})
        except InvalidRequest as error:
            str(error).encode()


def test_missing_fields() -> None:
    with pytest.raises(InvalidRequest, match=r"^payload"):
        decode_event({b"type": b"tokens"})
    with pytest.raises(InvalidRequest, match=r"^type"):
        decode_event({b"payload": msgpack.packb({})})


@given(st.integers(0, 2**63), st.integers(0, 2**63))
def test_event_ids(epoch: int, index: int) -> None:
    event_id = EventId(epoch, index)
    assert EventId.parse(str(event_id)) == event_id == EventId.parse(str(event_id).encode())
    assert EventId(epoch, index) < EventId(epoch, index + 1) < EventId(epoch + 1, 0)
    assert EventId.parse(str(epoch)) == EventId(epoch, 0)


@given(runs(), st.sampled_from(Form))
def test_the_payload_of_one_run_equals_that_of_any_event(run: Run, form: Form) -> None:
    event = Output((run,))
    assert encode_payload(event, form) == encode(event.to_wire(), form)


def test_the_part_of_a_prompt_beyond_a_position() -> None:
    run = PromptRun(2, (5, 6, 7), ([-1.0, []], [-2.0, []], [-3.0, []]), (1, 2, 3))
    assert (run.end, run.runs) == (5, ())
    assert run.beyond(0) is run.beyond(2) is run
    assert run.beyond(4) == PromptRun(4, (7,), ([-3.0, []],), (3,))
    assert PromptRun(2, (5, 6), ([-1.0, []], [-2.0, []])).beyond(3) == PromptRun(3, (6,), ([-2.0, []],))
    assert run.beyond(5) is None
