"""JSON with pre-encoded parts equals JSON written at once."""

import json
from typing import Any

import pytest

from orcastream.gateway.openai.encoded_json import EncodedList, encoded, encoded_items, encoded_text


def test_pre_encoded_lists() -> None:
    parts: list[list[Any]] = [[1, {"x": "a\u2028b"}], [None], ["世"]]
    told = EncodedList([encoded_items(part) for part in parts])
    body = encoded({"first": told, "text": "[]", "rest": [EncodedList([]), told]})
    whole: list[Any] = [item for part in parts for item in part]
    assert json.loads(body) == {"first": whole, "text": "[]", "rest": [[], whole]}
    assert body == encoded({"first": whole, "text": "[]", "rest": [[], whole]})
    assert "\u2028" not in body.decode()


def test_a_text() -> None:
    assert encoded_text("a\u2029世\n") == encoded("a\u2029世\n") == '"a\\u2029世\\n"'.encode()


def test_values_that_are_no_json() -> None:
    with pytest.raises(TypeError, match="set cannot be JSON"):
        encoded({"a": {1}})
