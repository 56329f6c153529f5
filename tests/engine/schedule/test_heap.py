"""A heap of requests against a sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from orcastream.engine.request import Request
from orcastream.engine.schedule.heap import RequestHeap
from tests.engine.schedule.pretended import request


def arrived(count: int, keys: list[int]) -> list[Request]:
    requests = [request(1, 1 + keys[index % len(keys)]) for index in range(count)]
    for arrival, each in enumerate(requests):
        each.arrive(arrival)
    return requests


@given(st.lists(st.integers(0, 4), min_size=1), st.lists(st.integers(0, 30), max_size=200))
def test_first_by_key_then_by_arrival(keys: list[int], moves: list[int]) -> None:
    requests = arrived(31, keys)
    heap, model = RequestHeap(lambda each: each.max_tokens), set[int]()
    for move in moves:
        (heap.remove if move in model else heap.push)(requests[move])
        model ^= {move}
        first = min(model, key=lambda index: (requests[index].max_tokens, index), default=None)
        assert heap.head() is (None if first is None else requests[first])
        assert len(heap) == len(model)
        assert {each.arrival for each in heap} == model


def test_holes_do_not_pile_up() -> None:
    requests = arrived(5000, [1])
    heap = RequestHeap()
    heap.push(requests[0])
    for each in requests[1:]:
        heap.push(each)
        heap.remove(each)
    assert len(heap._heap) < 100
    assert heap.head() is requests[0]
