"""Compute threads on cores of their own, and back where others need these."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from orcastream.engine.native.team import team_threads
from orcastream.worker import core_binding
from orcastream.worker.core_binding import CoreBinding
from orcastream.worker.cores import physical_cores, usable_processors
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
@pytest.mark.usefixtures("short_intervals")
def test_threads_are_released_for_another_program_and_bound_again_behind_it(
    competitor: "subprocess.Popen[bytes]", caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "orcastream.worker")

    def until_both() -> None:
        binding = CoreBinding(team_threads)
        binding.iterated(ALL)
        assert _affinities() != [usable_processors()] * len(_affinities())
        _compute_until(binding, lambda: _affinities() == [usable_processors()] * len(_affinities()))
        competitor.kill()
        _compute_until(binding, lambda: _affinities() == physical_cores(usable_processors()))

    _on_an_engine_thread(len(physical_cores(usable_processors())), until_both)
    messages = [record.message.split(" and ")[0] for record in caplog.records]
    assert messages[:3] == [
        "compute threads are bound to cores",
        "compute threads share their cores with others",
        "compute threads are bound to cores",
    ]


@needs_operators
@needs_two_cores
@pytest.mark.usefixtures("short_intervals")
def test_a_team_whose_threads_are_replaced_is_released() -> None:
    """The new ones have the affinity of the leader, so all of them would compute on its core."""
    threads = len(physical_cores(usable_processors())) + 1

    def replace() -> list[set[int]]:
        torch.set_num_threads(threads - 1)
        binding = CoreBinding(team_threads)
        binding.iterated(ALL)
        torch.set_num_threads(threads)
        assert len({*map(frozenset, _affinities())}) > 1
        _compute_until(binding, lambda: _affinities() == [usable_processors()] * threads)
        return _affinities()

    assert _on_an_engine_thread(threads, replace) == [usable_processors()] * threads


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
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_binding, "_CHECK_S", 0.3)
    monkeypatch.setattr(core_binding, "_FIRST_PAUSE_S", 0.1)


@pytest.fixture
def competitor() -> "Iterator[subprocess.Popen[bytes]]":
    """A program that computes without end on the first of the processors."""
    text = f"import os\nos.sched_setaffinity(0, {{{min(usable_processors())}}})\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def _on_an_engine_thread(threads: int, run: Callable[[], Result]) -> Result:
    """Run `run` in a thread that leads a team of that size."""

    def body() -> Result:
        torch.set_num_threads(threads)
        return run()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(body).result()


def _affinities() -> list[set[int]]:
    return [os.sched_getaffinity(thread) for thread in team_threads()]


def _compute_until(binding: CoreBinding, holds: Callable[[], bool], patience_s: float = 60.0) -> None:
    """Compute with all threads, as an engine does; fail if `holds` does not within `patience_s`."""
    matrix = torch.ones(512, 512)
    until_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < until_s
        for _ in range(10):
            matrix @ matrix
        binding.iterated(ALL)
