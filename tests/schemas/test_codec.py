"""Payload bytes: two forms distinguished by one byte, and only InvalidRequest for bytes that are neither."""

import contextlib
import math
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orcastream.schemas.codec import Form, decode, encode, form_of
from orcastream.schemas.errors import InvalidRequest

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
BODIES = st.dictionaries(
    st.text(),
    st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10),
    max_size=5,
)


def holds_infinity(value: object) -> bool:
    if isinstance(value, dict | list):
        return any(map(holds_infinity, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and math.isinf(value)


@given(BODIES, st.sampled_from(Form))
@example({"inf": None}, Form.JSON)
@example({"a": [{"b": -math.inf}]}, Form.JSON)
def test_round_trip(body: dict[str, Any], form: Form) -> None:
    if form is Form.JSON and holds_infinity(body):
        with pytest.raises(ValueError, match="JSON compliant"):
            encode(body, form)
        return
    payload = encode(body, form)
    assert form_of(payload) is form
    assert decode(payload) == decode(payload, unique_keys=True) == body


@pytest.mark.parametrize("size", [0, 1, 15, 16, 65_535, 65_536])
def test_no_msgpack_map_begins_like_json(size: int) -> None:
    assert form_of(encode({str(number): number for number in range(size)}, Form.MSGPACK)) is Form.MSGPACK


TWICE = {
    Form.JSON: b'{"prompt":[1],"max_tokens":5,"n":1,"max_tokens":7}',
    Form.MSGPACK: b"\x84" + b"".join(map(msgpack.packb, ("prompt", [1], "max_tokens", 5, "n", 1, "max_tokens", 7))),
}


@pytest.mark.parametrize("form", Form)
def test_a_duplicate_key_is_named(form: Form) -> None:
    with pytest.raises(InvalidRequest, match=r"^max_tokens: got \(5, 7\), allowed: one value") as refused:
        decode(TWICE[form], unique_keys=True)
    assert refused.value.field == "max_tokens"
    assert decode(TWICE[form])["max_tokens"] == 7, "an event is read for its last value"


@pytest.mark.parametrize("form", Form)
def test_a_duplicate_among_many_keys_is_found_in_one_pass(form: Form) -> None:
    """Half a million keys: comparing all pairs would take hours."""
    keys = [f"{number:06x}" for number in range(400_000)]
    payload = encode(dict.fromkeys(keys, 0), form)
    if form is Form.JSON:
        payload = payload[:-1] + f',"{keys[-1]}":1}}'.encode()
    else:
        payload = b"\xdf" + (len(keys) + 1).to_bytes(4, "big") + payload[5:] + msgpack.packb(keys[-1]) + b"\x01"
    with pytest.raises(InvalidRequest, match=rf"^{keys[-1]}: got \(0, 1\)"):
        decode(payload, unique_keys=True)


@pytest.mark.parametrize(
    "payload",
    [
        msgpack.packb({"a": [[]] * 100_000}),
        msgpack.packb({"a": [{}] * 100_000}),
        b'{"a":[' + b"{}," * 100_000 + b"{}]}",
    ],
    ids=["arrays", "maps", "JSON objects"],
)
def test_of_countless_parts_only_a_few_are_created(payload: bytes) -> None:
    assert len(decode(payload, unique_keys=True)["a"]) >= 100_000
    with pytest.raises(InvalidRequest, match=r"^payload: got 'more than 5 maps and arrays'"):
        decode(payload, max_parts=5)
    assert decode(encode({"a": [1], "b": [2]}, form_of(payload)), max_parts=3) == {"a": [1], "b": [2]}


def test_json_is_compact_utf8() -> None:
    assert encode({"stop": ["né"], "n": 1}, Form.JSON) == '{"stop":["né"],"n":1}'.encode()


@given(st.binary(max_size=200))
def test_arbitrary_bytes(payload: bytes) -> None:
    for candidate in (payload, b"{" + payload):
        for unique_keys in (False, True):
            with contextlib.suppress(InvalidRequest):
                assert isinstance(decode(candidate, unique_keys=unique_keys), dict)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="half an object"),
        pytest.param(b'{"a":1}{"b":2}', id="two objects"),
        pytest.param(b'[{"a":1}]', id="JSON array"),
        pytest.param('{"a":1}'.encode("utf-16-le"), id="JSON in UTF-16"),
        pytest.param(b'{"a":"\xff"}', id="JSON in no encoding"),
        pytest.param(b'{"a":' * 100_000, id="JSON nested too deep"),
        pytest.param(b'{"a":' + b"1" * 5000 + b"}", id="JSON integer of 5000 digits"),
        pytest.param(msgpack.packb({"a": 1})[:-1], id="half a map"),
        pytest.param(msgpack.packb({"a": 1}) * 2, id="two maps"),
        pytest.param(msgpack.packb([1]), id="msgpack array"),
        pytest.param(msgpack.packb({1: 1}), id="integer key"),
        pytest.param(msgpack.packb({b"a": 1}), id="binary key"),
        pytest.param(b"\x91" * 1000 + b"\x90", id="msgpack nested deeper than repr can go"),
        pytest.param(b"\x91" * 100_000 + b"\x90", id="msgpack nested too deep"),
        pytest.param(b"\xc1", id="byte that msgpack never uses"),
        pytest.param(b"\xc7\x03\xff\x00\x00\x00", id="broken timestamp"),
        pytest.param(b"\x81\xa1a\xd4\x05\x01", id="msgpack extension type"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="map that announces 4 billion entries"),
    ],
)
def test_refused(payload: bytes) -> None:
    for unique_keys in (False, True):
        with pytest.raises(InvalidRequest, match=r"^payload: got .*, allowed: one msgpack map or JSON object"):
            decode(payload, unique_keys=unique_keys)


@pytest.mark.parametrize(("payload", "reason"), [(b"\x91" * 100_000 + b"\x90", "StackError"), (b"\xc1", "FormatError")])
def test_an_error_of_msgpack_without_words_is_told_by_its_name(payload: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"\({reason}\)$"):
        decode(payload)


@pytest.mark.parametrize("before", [b" ", b"\n", b"\xef\xbb\xbf"])
def test_json_after_another_byte_is_told_its_first_byte(before: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"JSON object, whose first byte is {"):
        decode(before + b'{"a":1}')
