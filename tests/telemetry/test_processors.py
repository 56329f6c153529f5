"""The processors that a process may use."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from orcastream.telemetry.processors import usable_processors


def test_a_bound_thread_does_not_narrow_them() -> None:
    every = os.sched_getaffinity(os.getpid())

    def bind() -> set[int]:
        os.sched_setaffinity(0, {min(every)})
        return usable_processors()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(bind).result() == every


def test_all_of_the_machine_where_there_is_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_processors() == set(range(os.cpu_count() or 1))
