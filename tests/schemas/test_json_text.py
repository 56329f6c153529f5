"""The amount of JSON in a text, counted before parsing."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.json_text import JsonBounds, finite, parse_json

TEXT = st.text(alphabet='[{",\\é', max_size=20)
JSON = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)


def count(value: Any) -> tuple[int, int, int]:
    """Return the number of maps and arrays, names and strings, and commas."""
    if isinstance(value, str):
        return 0, 1, 0
    if not isinstance(value, list | dict):
        return 0, 0, 0
    items = list(value) if isinstance(value, list) else [*value.keys(), *value.values()]
    inner = [count(item) for item in items] or [(0, 0, 0)]
    parts, strings, commas = (sum(numbers) for numbers in zip(*inner, strict=True))
    return parts + 1, strings, commas + max(0, len(value) - 1)


@given(JSON, st.booleans())
def test_bounds_count_everything_except_the_inside_of_strings(value: Any, ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    exact = count(value)
    JsonBounds(*exact).check(raw, "body")
    for index, name in enumerate(("maps and arrays", "names and texts", "values")):
        if exact[index]:
            less = [*exact]
            less[index] -= 1
            with pytest.raises(InvalidRequest, match=f"^body: got 'more than {less[index]} {name}', allowed: at most"):
                JsonBounds(*less).check(raw, "body")


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b'{"a":[' + b"[]," * 100_000 + b"[]]}", "maps and arrays"),
        (b"[" * 100_000, "maps and arrays"),
        (b'{"a":' * 900, "maps and arrays"),
        (b'{"a":["["' + b',"[","x"' * 100_000, "names and texts"),
        (b'{"a":["["' + b',"[",{' * 501, "maps and arrays"),
        (b"{" + b'"a":1,' * 100_000, "names and texts"),
        (b"[" + b"1," * 100_000, "values"),
    ],
)
def test_too_much_is_refused_before_it_is_parsed(raw: bytes, what: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^body: got 'more than [0-9]+ {what}'"):
        JsonBounds(500, 1000, 2000).check(raw, "body")


def test_an_unterminated_string_hides_nothing() -> None:
    JsonBounds(1, 1, 0).check(b'["[[[[,,,,', "body")


@given(st.lists(st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_many_numbers_are_read_like_few(numbers: list[float]) -> None:
    raw = json.dumps(numbers).encode()
    many = raw[:-1] + b",0" * 100_001 + b"]"
    assert parse_json(many)[: len(numbers)] == parse_json(raw) == parse_json(raw, None, None, finite) == numbers
