"""Names of queue entries and their order."""

import pytest

from orcastream.broker.entry import EntryRef
from orcastream.schemas.errors import InvalidRequest


def test_order_is_by_id_then_class() -> None:
    refs = [EntryRef("low", "9-0"), EntryRef("high", "10-2"), EntryRef("normal", "10-2"), EntryRef("realtime", "10-10")]
    assert sorted({*refs}) == refs
    assert not refs[0] < refs[0]


def test_text_form() -> None:
    ref = EntryRef("high", "123-4")
    assert str(ref) == "high 123-4"
    assert EntryRef.parse("high 123-4") == EntryRef.parse(b"high 123-4") == ref


@pytest.mark.parametrize(
    "text", ["", "high", "urgent 1-1", "high 1", "high 1-x", "high -1", b"\xff 1-1", "high ²-1", f"high 1-{'9' * 5000}"]
)
def test_garbage(text: str | bytes) -> None:
    with pytest.raises(InvalidRequest, match="class entry-id"):
        EntryRef.parse(text)
