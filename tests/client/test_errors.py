"""Errors reach other processes unchanged."""

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from orcastream.client import ClientError, Expired, InvalidRequest, Refused, Unavailable
from orcastream.client.errors import failure

ERRORS = [
    Refused("words", code="invalid_request", request_id="r", field="temperature", status=400),
    failure("expired", "words", request_id="r"),
    Unavailable("words", code="unreachable"),
    InvalidRequest("urls", 1, "URLs", why="no text"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_are_pickled_and_copied_unchanged(error: Exception, protocol: int) -> None:
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_errors_from_a_process_pool() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(ClientError) as caught:
            pool.submit(_fail).result(timeout=60)
        assert type(caught.value) is Expired
        assert (caught.value.code, caught.value.request_id) == ("expired", "r")
        assert pool.submit(len, "abc").result(timeout=60) == 3


def _fail() -> None:
    raise failure("expired", "words", request_id="r")
