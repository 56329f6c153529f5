"""Key names: fixed forms, hash tags that Redis Cluster reads as intended, names that cannot break out of a key."""

import re
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import CLASSES, GROUP, Keys, check_id, check_name, class_weights, lane
from orcastream.schemas.limits import ID_PATTERN, NAME_PATTERN

IDS = st.from_regex(ID_PATTERN, fullmatch=True)
NAMES = st.from_regex(NAME_PATTERN, fullmatch=True)


def test_names() -> None:
    keys = Keys("org/model-1.5", "prod")
    assert keys.requests("high") == "prod:{org/model-1.5}:requests:high"
    assert keys.seen("r1") == "prod:{org/model-1.5}:seen:r1"
    assert keys.cancel("r1") == "prod:{org/model-1.5}:cancel:r1"
    assert keys.control == "prod:{org/model-1.5}:control"
    assert keys.dead == "prod:{org/model-1.5}:dead"
    assert keys.reply("r1") == "prod:reply:{b1}:r1"
    assert keys.worker("host-1-ab") == "prod:workers:org/model-1.5:host-1-ab"


def test_the_template_of_request_streams_contains_no_name() -> None:
    assert Keys("demo").requests_template == Keys("other").requests_template == "orca:{model}:requests:{class}"


def test_fixed_words() -> None:
    assert CLASSES == ("realtime", "high", "normal", "low")
    assert GROUP == "workers"
    assert Keys("m").control == "orca:{m}:control"


@given(NAMES, IDS)
def test_all_keys_of_a_queue_share_a_slot(model: str, request_id: str) -> None:
    keys = Keys(model)
    names = [keys.seen(request_id), keys.cancel(request_id), keys.control, keys.dead, *map(keys.requests, CLASSES)]
    names += [keys.response(request_id), keys.responses("tenant"), keys.response_bytes("tenant")]
    assert {key_slot(name.encode()) for name in names} == {key_slot(model.encode())}


@given(IDS)
def test_a_reply_log_is_in_the_slot_of_its_lane(request_id: str) -> None:
    tag = lane(request_id)
    assert tag == format(crc32(request_id.encode()) % 256, "02x")
    assert key_slot(Keys("m").reply(request_id).encode()) == key_slot(tag.encode())


def test_lanes_are_used_evenly() -> None:
    counts = [0] * 256
    for number in range(25_600):
        counts[int(lane(f"request-{number}"), 16)] += 1
    assert min(counts) > 50
    assert max(counts) < 200


@given(st.text() | st.none() | st.integers() | st.binary())
def test_id_form(candidate: object) -> None:
    allowed = isinstance(candidate, str) and re.fullmatch(r"[A-Za-z0-9_.\-]{1,128}", candidate)
    if allowed:
        assert check_id(candidate) == candidate
    else:
        with pytest.raises(InvalidRequest, match=r"^id: got "):
            check_id(candidate)


@pytest.mark.parametrize("name", ["", "a b", "a{b", "a}b", "a:b", "a\n", "a*", "é", "x" * 129, None, 1, b"a"])
def test_refused_names(name: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^model: got .*, allowed: 1 to 128 characters"):
        check_name(name, "model")


def test_keys_check_their_names() -> None:
    with pytest.raises(InvalidRequest, match=r"^model:"):
        Keys("a}b")
    with pytest.raises(InvalidRequest, match=r"^namespace:"):
        Keys("a", "b:c")


def test_each_class_weighs_as_much_more_than_the_one_below() -> None:
    assert class_weights(3.0) == {"realtime": 27.0, "high": 9.0, "normal": 3.0, "low": 1.0}
    assert set(class_weights(1.0).values()) == {1.0}
