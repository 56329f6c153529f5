"""InvalidRequest: a short sentence whatever the input was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.schemas.errors import MAX_FIELD_LENGTH, ErrorCode, InvalidRequest, shown


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_an_error_names_field_value_and_allowed_values() -> None:
    error = InvalidRequest("n", 17, "at most 16")
    assert str(error) == "n: got 17, allowed: at most 16"
    assert (error.field, error.value, error.allowed, error.code) == ("n", 17, "at most 16", ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize(
    "value", [b"x" * 10_000_000, "é" * 10_000_000, [1] * 1_000_000, nested(100_000), {"a": nested(900)}, 10**4000]
)
def test_large_and_deep_values_are_shown_short(value: object) -> None:
    assert len(shown(value)) <= 80


@given(st.text(st.characters()), st.text(st.characters()))
def test_message_can_be_written_as_utf8(field: str, value: str) -> None:
    error = InvalidRequest(field + "\ud800", value + "\udfff", "text")
    str(error).encode()
    error.field.encode()


def test_a_long_field_name_is_cut() -> None:
    assert len(InvalidRequest("x" * 1_000_000, 1, "less").field) == MAX_FIELD_LENGTH
