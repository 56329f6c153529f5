"""A list that is encoded as it grows equals one written at once."""

from orcastream.gateway.openai.encoded_json import EncodedList, encoded
from orcastream.gateway.openai.growing_list import GrowingList


def test_the_list_equals_the_added_items() -> None:
    items = GrowingList()
    assert encoded(items.so_far()) == b"[]"
    assert items.size_bytes == 0
    assert items.add([]) == items.so_far() == EncodedList(())
    first = items.add([1, {"x": "世"}])
    before = items.so_far()
    assert encoded(first) == encoded(before) == encoded([1, {"x": "世"}])
    assert encoded(items.add([[]])) == b"[[]]"
    assert encoded(before) == encoded(first), "returned bytes do not change"
    assert items.size_bytes + len(b"[]") == len(encoded(items.so_far()))
    assert encoded({"a": items.so_far()}) == encoded({"a": [1, {"x": "世"}, []]})
