"""The threads of a team stay the same from operator to operator."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch

from orcastream.engine.native.elementwise import gated, rms_norm, rotate
from orcastream.engine.native.maxima import row_maxima
from orcastream.engine.native.team import team_threads
from tests.engine.needs_operators import needs_operators

pytestmark = needs_operators
Result = TypeVar("Result")

OPERATORS: dict[str, Callable[[], object]] = {
    "rms_norm": lambda: rms_norm(torch.ones(3, 16384), torch.ones(16384), 1e-6),
    "gated": lambda: gated(torch.ones(3, 16384), torch.ones(3, 16384), "silu"),
    "rotate": lambda: rotate(torch.ones(3, 128, 128), torch.ones(3, 128), torch.ones(3, 128)),
    "row_maxima": lambda: row_maxima(torch.ones(3, 1 << 16), range(3)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_with_work_for_three_keeps_all_four_threads(name: str) -> None:
    def around() -> tuple[list[int], list[int]]:
        torch.set_num_threads(4)
        before = team_threads()
        OPERATORS[name]()
        return before, team_threads()

    before, after = _in_a_thread(around)
    assert before == after
    assert len(set(before)) == 4


def test_the_calling_thread_is_the_first() -> None:
    def ids() -> tuple[list[int], int]:
        torch.set_num_threads(2)
        return team_threads(), threading.get_native_id()

    team, own = _in_a_thread(ids)
    assert team[0] == own
    assert len(team) == 2


def _in_a_thread(run: Callable[[], Result]) -> Result:
    """Run `run` in a thread of its own: a team belongs to the thread that leads it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()
