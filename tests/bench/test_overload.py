"""The result of an overload run: requests in time, speed of refusals, and time to recover."""

import json
from pathlib import Path
from typing import Any

import pytest

from orcastream.bench.figures.outcome import Outcome
from orcastream.bench.overload.command import main
from orcastream.bench.overload.report import Report
from orcastream.bench.workloads import SampleRequest

REQUEST = SampleRequest((1,), max_tokens=1)


def served(at_s: float, *, first_s: float = 0.1, end_s: float = 1.0) -> Outcome:
    return Outcome(REQUEST, at_s, pieces_s=[at_s + first_s], ended_s=at_s + end_s)


def refused(at_s: float, after_s: float = 0.01) -> Outcome:
    return Outcome(REQUEST, at_s, error="429 wait_too_long", refused_after_s=after_s)


def report(overload: list[Outcome], after: list[Outcome], **changes: Any) -> Report:
    return Report(10.0, [served(0), served(1, first_s=0.2)], overload, after, 20.0, 60.0, **changes)


def test_a_run_that_meets_every_goal() -> None:
    run = report([served(0, end_s=19), refused(1)], [served(61, first_s=5), served(66), served(70)])
    assert (len(run.accepted), run.in_time, run.recovered_after_s) == (1, 1, 6)
    assert run.failed() == []
    assert run.figures()["refused"] == {"429 wait_too_long": 1}
    assert "recovered 6.0 s after" in run.summary()


def test_answers_after_the_overload_do_not_count_in_its_rate() -> None:
    run = report([served(0, end_s=19), served(30, end_s=1), served(59, end_s=15), refused(1)], [served(61)])
    assert run.figures()["completed_per_s"] == 2 / 60


def test_each_goal_can_be_missed() -> None:
    late = report([served(0, end_s=21), refused(1)], [served(61)])
    assert late.failed() == ["1 of 1 accepted were not answered in time"]
    broken = Outcome(REQUEST, 0, pieces_s=[1.0], error="in the stream: expired")
    assert report([broken, refused(1)], [served(61)]).failed() == ["1 of 1 accepted were not answered in time"]
    slow = report([served(0), refused(1, after_s=0.2)], [served(61)])
    assert slow.failed() == ["refusals took 200 ms at the 99th percentile"]
    for after in ([served(61, first_s=5)], [refused(61)], [served(61, first_s=0.5), served(72)]):
        assert report([served(0), refused(1)], after).failed() == ["service had not recovered within 10 s"]
    assert report([served(0)], [served(61)]).failed() == ["nothing was refused: the load was not an overload"]


@pytest.mark.server
def test_the_command_starts_the_service_that_it_loads(tmp_path: Path) -> None:
    """The figures of so short a run and its exit status do not matter here."""
    found = tmp_path / "figures.json"
    main(["--capacity-seconds=1", "--normal-seconds=1", "--seconds=1", "--times=1", "--tokens=4", f"--json={found}"])
    figures = json.loads(found.read_text())
    assert figures["requests"] > 0
    assert figures["accepted"] == figures["in_time"]
