"""The request pool keeps its lists in order of arrival."""

import pytest

from engine.errors import IntegrityError
from engine.request import Request, RequestState
from engine.schedule.pool import RequestPool
from schemas.sampling import SamplingParams


def filled(count: int) -> tuple[RequestPool, list[Request]]:
    pool = RequestPool()
    requests = [Request(str(index), (1, 2), SamplingParams(max_tokens=3)) for index in range(count)]
    for request in requests:
        pool.add(request)
    return pool, requests


def test_a_preempted_request_returns_to_its_place() -> None:
    pool, (first, second, third) = filled(3)
    pool.admit(first)
    pool.admit(second)
    assert pool.running == [first, second]
    pool.put_back(first)
    assert pool.waiting == [first, third]
    assert pool.running == [second]
    pool.check_integrity()


def test_removing_from_either_list() -> None:
    pool, (first, second, third) = filled(3)
    pool.admit(first)
    for request in (first, third):
        pool.remove(request)
    assert (pool.running, pool.waiting, len(pool)) == ([], [second], 1)
    assert "0" not in pool
    assert pool.get("1") is second
    assert pool.get("0") is None


def test_a_state_that_was_set_behind_its_back_is_found() -> None:
    pool, (first, _) = filled(2)
    first.state = RequestState.INCREMENT
    with pytest.raises(IntegrityError, match="wrong list"):
        pool.check_integrity()
