"""The engine's thread: output arrives as it is generated, is bounded, and a bad request affects no other."""

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from orcastream.engine import IterationRecord, OrcaEngine, Request, TokenEvent
from orcastream.schemas.sampling import SamplingParams
from orcastream.worker.engine_loop import EngineFailed, EngineLoop, EngineOutput, Iterated, Refused
from tests.patience import PATIENCE_S
from tests.redis_waiting import wait_until
from tests.worker.demo_engine import demo_engine

PROMPT = (5, 6, 7, 8)
LONG = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)


@pytest.fixture
def engine() -> OrcaEngine:
    """A fresh engine with the demo model."""
    return load()


def load(**settings: Any) -> OrcaEngine:
    """Load an engine with the demo model."""
    return demo_engine(**settings)


class Run:
    """An engine loop whose output is put into a queue."""

    def __init__(self, engine: OrcaEngine, max_unpublished: int = 1000, listeners: Sequence[Iterated] = ()) -> None:
        self.output: queue.Queue[list[EngineOutput]] = queue.Queue()
        self.loop = EngineLoop(engine, self.output.put, max_unpublished=max_unpublished, listeners=listeners)
        self.loop.start()

    def events(self, count: int) -> list[EngineOutput]:
        events: list[EngineOutput] = []
        while len(events) < count:
            events += self.output.get(timeout=PATIENCE_S)
        return events


@pytest.fixture
def run(engine: OrcaEngine) -> Iterator[Run]:
    """A running loop with a small bound."""
    run = Run(engine, max_unpublished=10)
    yield run
    run.loop.stop()
    run.loop.join(PATIENCE_S)


def test_output_is_bounded_until_it_is_published(run: Run) -> None:
    run.loop.submit([Request("a", PROMPT, LONG)])
    assert len(run.events(10)) == 10
    assert run.output.get(timeout=PATIENCE_S) == [], "no further iteration runs"
    with pytest.raises(queue.Empty):
        run.output.get(timeout=0.3)
    assert run.loop.stalled_for_s() == 0
    run.loop.published(4)
    assert len(run.events(4)) == 4


def test_cancel_reaches_an_engine_that_waits_for_the_publisher(run: Run) -> None:
    run.loop.submit([Request("a", PROMPT, LONG)])
    run.events(10)
    run.loop.cancel(["a"])
    assert run.output.get(timeout=PATIENCE_S) == []
    run.loop.published(10)
    run.loop.submit([Request("b", PROMPT, LONG)])
    assert {event.request_id for event in run.events(3)} == {"b"}


@pytest.mark.parametrize("ends", ["resume", "release", "alone"])
def test_a_paused_engine_begins_no_iteration(run: Run, ends: str) -> None:
    """It takes new requests, and is not busy once the last iteration has ended."""
    run.loop.submit([Request("a", PROMPT, LONG)])
    run.events(2)
    run.loop.pause()
    wait_until(lambda: not run.loop.busy)
    assert run.loop.stalled_for_s() == 0
    iterations = run.loop.iterations
    if ends == "alone":
        run.loop.submit([Request("b", PROMPT, LONG)], alone=True)
    else:
        run.loop.submit([Request("b", PROMPT, LONG)])
        wait_until(lambda: not run.loop.busy)
        assert run.loop.iterations == iterations
        getattr(run.loop, ends)()
    while not run.output.empty():
        run.loop.published(len(run.output.get()))
    seen = {event.request_id for event in run.events(3)}
    assert seen == ({"b"} if ends == "alone" else {"a", "b"})


def test_a_pause_holds_no_output_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins when the engine has just decided to hand over in its next iteration."""
    can_run = run.loop._can_run

    def can_run_until_paused() -> bool:
        answer = can_run()
        if run.loop.iterations == 2:
            run.loop._paused = True
        return answer

    monkeypatch.setattr(run.loop, "_can_run", can_run_until_paused)
    run.loop.submit([Request("a", PROMPT, LONG)])
    assert len(run.events(2)) == 2
    assert run.loop.iterations == 2


@pytest.mark.parametrize("bound", [10, 1000])
def test_a_pause_lasts_until_the_iteration_in_flight_has_ended(bound: int) -> None:
    """Otherwise a fault in it would be blamed on the request that runs alone next. With the smaller bound the engine
    already waits for the publisher."""
    told: list[IterationRecord] = []
    engine = load(overlap="on")
    run = Run(engine, bound, [told.append])
    run.loop.submit([Request("a", PROMPT, LONG)])
    run.loop.published(len(run.events(2)) - 2)
    if bound == 10:
        wait_until(lambda: not run.loop.busy)
        assert engine.in_flight
    run.loop.pause()
    wait_until(lambda: not run.loop.busy)
    assert not engine.in_flight
    before = len(told)
    run.loop.submit([Request("b", PROMPT, SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True))], alone=True)
    run.loop.published(before)
    wait_until(lambda: len(told) == before + 3)
    assert {name for record in told[before:] for name in record.request_ids} == {"b"}
    wait_until(lambda: not run.loop.busy)
    assert not engine.in_flight
    run.loop.stop()
    run.loop.join(PATIENCE_S)


@pytest.mark.parametrize("cancels", [False, True])
def test_the_others_wait_for_the_release_after_an_isolated_request_has_ended(run: Run, cancels: bool) -> None:
    """It may end before any of its output is written."""
    run.loop.submit([Request("a", PROMPT, LONG)])
    run.events(2)
    run.loop.pause()
    wait_until(lambda: not run.loop.busy)
    while not run.output.empty():
        run.loop.published(len(run.output.get()))
    run.loop.submit([Request("b", PROMPT, LONG if cancels else SamplingParams(max_tokens=2))], alone=True)
    run.loop.published(len(run.events(2)))
    if cancels:
        run.loop.cancel(["b"])
    wait_until(lambda: not run.loop.busy)
    left = [event.request_id for _ in range(run.output.qsize()) for event in run.output.get()]
    assert set(left) <= ({"b"} if cancels else set())
    run.loop.published(len(left))
    run.loop.release()
    assert {event.request_id for event in run.events(2)} == {"a"}


def test_a_first_token_does_not_wait_for_the_next_iteration(
    engine: OrcaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, read, steps = engine.step, threading.Event(), []

    def second_once_read() -> list[TokenEvent]:
        steps.append(step)
        if len(steps) == 2:
            read.wait(PATIENCE_S)
        return step()

    monkeypatch.setattr(engine, "step", second_once_read)
    run = Run(engine)
    run.loop.submit([Request("a", PROMPT, LONG)])
    (first,) = run.output.get(timeout=PATIENCE_S)
    assert isinstance(first, TokenEvent)
    assert first.position == 0
    read.set()
    run.loop.stop()
    run.loop.join(PATIENCE_S)


def test_a_refused_request_affects_no_other(run: Run) -> None:
    run.loop.submit([Request("bad", (10**9,), LONG), Request("good", PROMPT, LONG)])
    events = run.events(5)
    assert [event.request_id for event in events if isinstance(event, Refused)] == ["bad"]
    assert {event.request_id for event in events if isinstance(event, TokenEvent)} == {"good"}


def test_failure_of_the_engine_ends_the_thread_and_is_reported(engine: OrcaEngine) -> None:
    def broken() -> list[TokenEvent]:
        raise MemoryError("device gone")

    engine.step = broken  # type: ignore[method-assign]
    run = Run(engine)
    run.loop.submit([Request("a", PROMPT, LONG)])
    run.loop.join(PATIENCE_S)
    assert run.output.get(timeout=PATIENCE_S) == []
    with pytest.raises(EngineFailed, match=r"^MemoryError$") as failed:
        run.loop.check()
    assert str(failed.value.__cause__) == "device gone", "the log records it if it may"
    wait_until(lambda: run.loop.stalled_for_s() > 0)  # for probes, which are told of no failure


def test_it_hesitates_once_an_iteration_takes_longer_than_a_lease(engine: OrcaEngine) -> None:
    """Regardless of the slowest recent iteration, such as the first one with a cold cache."""
    going_on = threading.Event()

    def stand_still() -> list[TokenEvent]:
        going_on.wait(PATIENCE_S)
        return []

    engine.step = stand_still  # type: ignore[method-assign]
    loop = EngineLoop(engine, lambda _: None, max_unpublished=1000, lease_s=0.5)
    loop._slowest_s = 3600.0
    loop.submit([Request("a", PROMPT, LONG)])
    loop.start()
    try:
        wait_until(lambda: loop.hesitates)
    finally:
        going_on.set()
        loop.stop()
        loop.join(PATIENCE_S)


def test_listeners_see_each_iteration_once_if_the_next_one_overlaps() -> None:
    """The first step of a batch launches an iteration and ends none."""
    told: list[IterationRecord] = []
    run = Run(load(overlap="on"), listeners=[told.append])
    for name in "abc":
        run.loop.submit([Request(name, PROMPT, SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True))])
        run.events(2)
        wait_until(lambda: not run.loop.busy)
    run.loop.stop()
    run.loop.join(PATIENCE_S)
    assert [record.request_ids for record in told] == [[name] for name in "aabbcc"]


def test_listeners_see_each_iteration_and_cannot_stop_the_engine(engine: OrcaEngine) -> None:
    told: list[IterationRecord] = []
    failures: list[IterationRecord] = []

    def broken(record: IterationRecord) -> None:
        failures.append(record)
        raise TypeError("unhashable")

    run = Run(engine, listeners=[broken, told.append])
    run.loop.submit([Request("a", PROMPT, SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))])
    run.events(4)
    run.loop.stop()
    run.loop.join(PATIENCE_S)
    run.loop.check()
    assert [(record.prefill_tokens, record.decode_tokens) for record in told] == [(4, 0), (0, 1), (0, 1), (0, 1)]
    assert failures == told[:1]
