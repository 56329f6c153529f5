"""Prefixes of JSON are distinguished from other text."""

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.text.tools.json_scanner import JsonScanner, Place

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
TEXTS = st.builds(
    json.dumps, VALUES, ensure_ascii=st.booleans(), indent=st.sampled_from([None, 1]), sort_keys=st.just(value=False)
)


def scanned(text: str) -> int:
    """Return how many characters may be the beginning of a value."""
    scanner = JsonScanner()
    return next((number for number, char in enumerate(text) if not scanner.take(char)), len(text))


def is_whole(text: str) -> bool:
    """Return whether the text is one value; a number ends with the character after it."""
    scanner = JsonScanner()
    return all(map(scanner.take, f"{text} ")) and scanner.depth == 0 and scanner.place is Place.BEHIND


def is_json(text: str) -> bool:
    def refuse(text: str) -> Any:
        raise ValueError(text)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@given(TEXTS)
def test_json_and_its_prefixes_are_accepted(text: str) -> None:
    assert scanned(text) == len(text)
    assert is_whole(text)


@given(TEXTS, st.data())
def test_changed_text_is_judged_like_a_json_parser(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 2))
        new = data.draw(st.text(alphabet='{}[],:"\\ \t\n\x00+-.eEu019truefalsn' + string.hexdigits, max_size=2))
        text = text[:place] + new + text[place + length :]
    assert is_whole(text) is is_json(text)


@pytest.mark.parametrize("text", ["0", "-0.5e+10", "1E-2", "true", "[]", "{}", '"\\u00e9"', '{"a": [1, {"b": null}]}'])
def test_values(text: str) -> None:
    assert is_whole(text)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        *(("01", 1), ("-a", 1), ("1.e", 2), ("1e+x", 3), ("tru ", 3), ("NaN", 0), ("-Infinity", 1)),
        *(("[1,]", 3), ("[,", 1), ("{,", 1), ('{"a" 1', 5), ('{"a": 1,}', 8), ("[1}", 2), ("{1", 1), ("1 2", 2)),
        *(('"\n', 1), ('"\\x', 2), ('"\\u12g', 5), ("'", 0)),
    ],
)
def test_where_text_stops_being_json(text: str, length: int) -> None:
    assert scanned(text) == length


def test_nesting_is_bounded_only_by_the_text() -> None:
    assert is_whole("[" * 100_000 + "]" * 100_000)
