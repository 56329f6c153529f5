"""Durations in units of a matrix product, for tests that must not depend on a machine's speed."""

import statistics
import time
from collections.abc import Callable

_ROUNDS = 15
_ATTEMPTS = 4
_SLOWER = 1.5
"""How many times a recorded ratio is still taken for the same speed: machines differ, and twice is a regression."""


def ratio(work: Callable[[], object], product: Callable[[], object]) -> float:
    """Return the CPU time of `work` over that of `product`; they alternate, so that disturbances affect both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS):
        for each, taken_s in zip((product, work), times, strict=True):
            begun_s = time.thread_time()
            each()
            taken_s.append(time.thread_time() - begun_s)
    product_s, work_s = map(statistics.median, times)
    return work_s / product_s


def check_ratio(work: Callable[[], object], product: Callable[[], object], recorded: float) -> None:
    """Fail if `work` takes much longer than recorded, or if twice the work would go undetected.

    After a speedup, record the new ratio: `pytest -s` shows it.
    """
    found = [ratio(work, product)]
    while found[-1] > _SLOWER * recorded and len(found) < _ATTEMPTS:
        found.append(ratio(work, product))
    print(f"ratios {found}, recorded {recorded}")
    assert found[-1] <= _SLOWER * recorded
    twice = ratio(lambda: (work(), work()), product)
    assert twice > _SLOWER * found[-1], f"twice the work measures {twice}, once {found[-1]}"
