"""The request pool separates waiting, running and following requests."""

import pytest

from orcastream.engine.errors import IntegrityError
from orcastream.engine.request import Request, RequestState
from orcastream.engine.schedule.pool import RequestPool
from tests.engine.schedule.pretended import request


def filled(count: int) -> tuple[RequestPool, list[Request]]:
    pool = RequestPool()
    requests = [request(2, name=str(index)) for index in range(count)]
    for each in requests:
        pool.add(each)
    return pool, requests


def run(pool: RequestPool, each: Request) -> None:
    each.state = RequestState.INITIATION
    pool.run(each)


def test_running_requests_are_in_order_of_arrival() -> None:
    pool, (first, second, third) = filled(3)
    for each in (third, first):
        run(pool, each)
    assert pool.running == [first, third]
    assert list(pool.waiting.values()) == [second]
    first.state = RequestState.WAITING
    pool.put_back(first)
    assert pool.running == [third]
    assert set(pool.waiting) == {"0", "1"}
    pool.check_integrity()


def test_removing_from_either_side() -> None:
    pool, (first, second, third) = filled(3)
    run(pool, first)
    for each in (first, third):
        assert pool.remove(each) == []
    assert (pool.running, list(pool.waiting.values()), len(pool)) == ([], [second], 1)
    assert "0" not in pool
    assert pool.get("1") is second
    assert pool.get("0") is None


def test_followers_hold_batch_slots_once_their_leader_runs() -> None:
    pool, (leader,) = filled(1)
    follower = request(2, name="follower")
    pool.add(follower, leader)
    assert pool.leader_of(follower) is leader
    assert pool.places_taken == 0
    run(pool, leader)
    assert pool.places_taken == 2
    pool.check_integrity()
    pool.remove(follower)
    assert pool.places_taken == 1
    pool.check_integrity()


def test_followers_of_a_departed_leader_wait_on_their_own() -> None:
    pool, (leader,) = filled(1)
    follower = request(2, name="follower")
    pool.add(follower, leader)
    assert pool.remove(leader) == [follower]
    assert list(pool.waiting.values()) == [follower]
    assert pool.leader_of(follower) is None
    pool.check_integrity()


def test_a_state_set_from_outside_is_detected() -> None:
    pool, (first, _) = filled(2)
    first.state = RequestState.INCREMENT
    with pytest.raises(IntegrityError, match="wrong place"):
        pool.check_integrity()
