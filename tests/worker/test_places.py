"""Batch slots, numbered for the console's picture."""

from orcastream.engine import Request, RequestState
from orcastream.schemas.stopping import FinishReason
from orcastream.worker.stats.places import Places


def running(name: str) -> Request:
    request = Request(name, (1, 2, 3))
    request.arrive(0)
    request.state = RequestState.INCREMENT
    return request


def end(request: Request, at_s: float, reason: FinishReason | None = FinishReason.LENGTH) -> None:
    request.finish(reason)
    request.timeline.finished_s = at_s


def preempt(request: Request, at_s: float) -> None:
    request.preempt()
    request.timeline.preempted_s[-1] = at_s


def places_of(places: Places) -> dict[str, int]:
    return {one.request.id: one.place for one in places}


def test_a_new_request_gets_the_lowest_free_slot() -> None:
    places = Places()
    a, b, c, d = (running(name) for name in "abcd")
    places.seat([a, b, c], 1.0)
    assert places_of(places) == {"a": 0, "b": 1, "c": 2}
    end(b, 1.5)
    end(a, 1.6, None)
    occupants, left = places.seat([c, d], 2.0)
    assert [(one.request.id, one.left()) for one in left] == [("a", (1.6, "withdrawn")), ("b", (1.5, "finished"))]
    assert [one.place for one in occupants] == [2, 0]


def test_a_request_that_has_not_left_keeps_its_slot_for_the_iteration() -> None:
    places = Places()
    a, b = running("a"), running("b")
    places.seat([a], 1.0)
    end(a, 5.0)
    places.seat([a, b], 2.0)
    assert places_of(places) == {"a": 0, "b": 1}
    assert [one.request.id for one in places.clear_left()] == ["a"]


def test_a_preempted_request_returns_as_a_new_one() -> None:
    places = Places()
    a, b = running("a"), running("b")
    places.seat([a, b], 1.0)
    preempt(a, 1.5)
    _, left = places.seat([b], 2.0)
    assert [(one.request.id, one.left()) for one in left] == [("a", (1.5, "preempted"))]
    c = running("c")
    places.seat([b, c], 2.5)
    a.state = RequestState.INITIATION
    (_, _, again), left = places.seat([b, c, a], 3.0)
    assert (again.place, again.left(), left) == (2, None, [])
    assert places_of(places) == {"a": 2, "b": 1, "c": 0}
