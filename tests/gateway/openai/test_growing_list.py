"""A list that is encoded while it comes: as if it were written at once."""

from orcastream.gateway.openai.encoded_json import EncodedList, encoded
from orcastream.gateway.openai.growing_list import GrowingList


def test_it_is_what_was_added() -> None:
    items = GrowingList()
    assert encoded(items.so_far()) == b"[]"
    assert items.size_bytes == 0
    assert items.add([]) == items.so_far() == EncodedList(())
    first = items.add([1, {"x": "世"}])
    before = items.so_far()
    assert encoded(first) == encoded(before) == encoded([1, {"x": "世"}])
    assert encoded(items.add([[]])) == b"[[]]"
    assert encoded(before) == encoded(first), "what was given out stays as it was"
    assert items.size_bytes + len(b"[]") == len(encoded(items.so_far()))
    assert encoded({"a": items.so_far()}) == encoded({"a": [1, {"x": "世"}, []]})
