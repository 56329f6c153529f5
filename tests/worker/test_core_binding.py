"""Compute threads on cores of their own."""

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from orcastream.engine.native.team import team_threads
from orcastream.telemetry.processors import usable_processors
from orcastream.worker import core_binding
from orcastream.worker.core_binding import CoreBinding
from orcastream.worker.cores import physical_cores
from orcastream.worker.settings import WorkerSettings
from tests.engine.needs_operators import needs_operators
from tests.worker.demo_engine import demo_engine

Result = TypeVar("Result")
ALL: Any = None  # stands for an iteration's record, which a binding does not read
needs_two_cores = pytest.mark.skipif(len(physical_cores(usable_processors())) < 2, reason="needs two cores")


def test_processors_are_grouped_by_core(tmp_path: Path) -> None:
    """As of two cores with two threads each, one of which may not be used, and a processor without a description."""
    for processor, siblings in {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}.items():
        folder = tmp_path / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert physical_cores({0, 1, 2, 7}, tmp_path) == [{0, 2}, {1}, {7}]


@needs_operators
@needs_two_cores
def test_threads_are_bound_each_to_its_core() -> None:
    cores = physical_cores(usable_processors())

    def bind() -> list[set[int]]:
        CoreBinding(team_threads).iterated(ALL)
        return _affinities()

    assert _on_an_engine_thread(len(cores), bind) == cores


@needs_operators
@needs_two_cores
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_team_of_another_size_is_left_alone(difference: int) -> None:
    def bind() -> list[set[int]]:
        CoreBinding(team_threads).iterated(ALL)
        return _affinities()

    threads = len(physical_cores(usable_processors())) + difference
    assert _on_an_engine_thread(threads, bind) == [usable_processors()] * threads


@needs_operators
@needs_two_cores
@pytest.mark.usefixtures("at_each_iteration")
def test_a_team_that_grows_is_released_and_bound_again_once_it_fits(caplog: pytest.LogCaptureFixture) -> None:
    """New threads have the affinity of the leader, so all of them would compute on its core."""
    caplog.set_level(logging.INFO, "orcastream.worker")
    cores = physical_cores(usable_processors())

    def grow_and_shrink() -> list[list[set[int]]]:
        binding, seen = CoreBinding(team_threads), []
        for threads in (len(cores), len(cores) + 1, len(cores)):
            torch.set_num_threads(threads)
            binding.iterated(ALL)
            seen.append(_affinities())
        return seen

    bound, released = cores, [usable_processors()] * (len(cores) + 1)
    assert _on_an_engine_thread(len(cores), grow_and_shrink) == [bound, released, bound]
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "compute threads are bound to cores",
        "compute threads or their cores have changed",
        "compute threads are bound to cores",
    ]


@needs_operators
@needs_two_cores
@pytest.mark.usefixtures("at_each_iteration")
def test_threads_follow_the_process_to_other_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a container is given fewer cores, and later more."""
    every, cores = usable_processors(), physical_cores(usable_processors())

    def move() -> list[list[set[int]]]:
        binding, seen = CoreBinding(team_threads), []
        for usable in (every, set(cores[0]), every):
            monkeypatch.setattr(core_binding, "usable_processors", lambda usable=usable: usable)
            binding.iterated(ALL)
            seen.append(_affinities())
        return seen

    assert _on_an_engine_thread(len(cores), move) == [cores, [set(cores[0])] * len(cores), cores]


@needs_operators
@needs_two_cores
def test_without_the_system_s_permission_nothing_is_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: int, processors: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    caplog.set_level(logging.INFO, "orcastream.worker")
    monkeypatch.setattr(os, "sched_setaffinity", refuse)

    def bind_twice() -> None:
        binding = CoreBinding(team_threads)
        binding.iterated(ALL)
        binding.iterated(ALL)

    _on_an_engine_thread(len(physical_cores(usable_processors())), bind_twice)
    assert [record.message for record in caplog.records] == [
        "the system does not let compute threads be bound to cores"
    ]


@needs_operators
@needs_two_cores
def test_the_setting_decides() -> None:
    engine = demo_engine()
    assert [len(core_binding.core_binding(WorkerSettings(bind_threads=on), engine)) for on in (True, False)] == [1, 0]


@pytest.fixture
def at_each_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_binding, "_CHECK_S", 0.0)
    monkeypatch.setattr(core_binding, "_FIRST_PAUSE_S", 0.0)


def _on_an_engine_thread(threads: int, run: Callable[[], Result]) -> Result:
    """Run `run` in a thread that leads a team of that size."""

    def body() -> Result:
        torch.set_num_threads(threads)
        return run()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(body).result()


def _affinities() -> list[set[int]]:
    return [os.sched_getaffinity(thread) for thread in team_threads()]
