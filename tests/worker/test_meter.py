"""The throughput that a worker reports: measured while it is saturated, in the tokens that requests declare."""

import time
from typing import Any

import pytest

from orcastream.broker.throughput import Throughput
from orcastream.schemas.events import Usage
from orcastream.schemas.request import Payload, parse_payload
from orcastream.worker.meter import ThroughputMeter


def payload(**changes: Any) -> Payload:
    return parse_payload({"prompt": [1] * 10, "max_tokens": 90, **changes})


class Engine:
    """Counts of an engine, read every tenth of a second of its own clock."""

    def __init__(self, meter: ThroughputMeter) -> None:
        self._meter = meter
        self._now_s, self._tokens, self._iterations = 100.0, 0, 0

    def run(self, seconds: float, *, tokens: int, is_saturated: bool = True) -> None:
        """Compute `tokens` in each tenth of a second, in two iterations."""
        for _ in range(round(seconds * 10)):
            self._now_s += 0.1
            self._tokens += tokens
            self._iterations += 2
            self._meter.look(self._now_s, self._tokens, self._iterations, is_saturated=is_saturated)


@pytest.fixture
def meter() -> ThroughputMeter:
    return ThroughputMeter(4)


@pytest.fixture
def engine(meter: ThroughputMeter) -> Engine:
    return Engine(meter)


def told(meter: ThroughputMeter) -> Throughput:
    report = meter.report([])
    assert report is not None
    return report


def test_nothing_is_reported_before_requests_have_waited(meter: ThroughputMeter, engine: Engine) -> None:
    engine.run(10, tokens=5, is_saturated=False)
    assert meter.report([]) is None
    engine.run(0.3, tokens=5)
    engine.run(1, tokens=5, is_saturated=False)
    assert meter.report([]) is None, "a batch that is still filling yields no measurement"
    engine.run(1.5, tokens=100)
    assert told(meter).tokens_per_s == pytest.approx(1000)
    assert told(meter).token_ms == pytest.approx(50)


def test_work_of_an_idle_engine_changes_nothing(meter: ThroughputMeter, engine: Engine) -> None:
    engine.run(2, tokens=100)
    engine.run(60, tokens=1, is_saturated=False)
    assert told(meter).tokens_per_s == pytest.approx(1000)


def test_an_iteration_counts_once_it_has_ended(meter: ThroughputMeter) -> None:
    """If the worker is no longer saturated then, its time counts no more than its tokens."""
    now_s, num_tokens = 100.0, 0
    for iteration in range(20):
        for _ in range(9):
            now_s += 0.1
            meter.look(now_s, num_tokens, iteration, is_saturated=True)
        now_s += 0.1
        num_tokens += 100
        meter.look(now_s, num_tokens, iteration + 1, is_saturated=iteration < 10)
    assert told(meter).tokens_per_s == pytest.approx(100, rel=0.02)


def test_only_the_last_seconds_count(meter: ThroughputMeter, engine: Engine) -> None:
    engine.run(60, tokens=100)
    engine.run(25, tokens=20)
    assert 200 < told(meter).tokens_per_s < 210


def test_declared_tokens_scale_with_computed_ones(meter: ThroughputMeter, engine: Engine) -> None:
    """Answers that end at a tenth of their maximum length are served ten times as fast as declared."""
    engine.run(2, tokens=100)
    for _ in range(20):
        meter.ended(payload(), Usage(10, 9, 9))
    assert told(meter).tokens_per_s == pytest.approx(1000 * 100 / 10)
    assert told(meter).token_ms == pytest.approx(50 / 10)


def test_every_candidate_counts(meter: ThroughputMeter, engine: Engine) -> None:
    engine.run(2, tokens=100)
    meter.ended(payload(n=2, best_of=4), Usage(10, 180))
    assert told(meter).tokens_per_s == pytest.approx(1000)
    assert told(meter).token_ms == pytest.approx(50)


def test_a_stopped_clock(meter: ThroughputMeter) -> None:
    now_s = time.monotonic()
    for tokens in range(5):
        meter.look(now_s, tokens, tokens, is_saturated=True)
    assert meter.report([]) is None
