"""A long run under steady load: how events are assigned to windows, and what counts as growth."""

import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from orcastream.bench.figures.outcome import Outcome
from orcastream.bench.main import main
from orcastream.bench.soak.windows import Window, Windows, shortcomings
from orcastream.bench.workloads import SampleRequest

MIB = 2**20


def _outcome(*pieces_s: float, arrived_s: float = 0.0, error: str | None = None) -> Outcome:
    request = SampleRequest((1, 2), max_tokens=len(pieces_s))
    ended_s = None if error else pieces_s[-1]
    return Outcome(request, arrived_s, list(pieces_s), tokens=len(pieces_s), ended_s=ended_s, error=error)


def test_gaps_count_at_their_token_and_requests_at_their_end() -> None:
    windows = Windows(0.0, 10.0)
    outcomes = [_outcome(1.0, 9.0, 11.0, arrived_s=0.5), _outcome(error="cut off", arrived_s=12.0)]
    windows.take(outcomes)
    first, second = windows._windows
    assert outcomes == []
    assert list(first.gaps_s) == [8.0]
    assert list(second.gaps_s) == [2.0]
    assert (first.complete, second.complete, second.errors) == (0, 1, {"cut off": 1})
    assert list(second.ttfts_s) == [0.5]


def test_an_incomplete_window_is_left_out() -> None:
    windows = Windows(0.0, 1e12)
    windows.look({})
    assert windows.whole == []


def test_a_process_that_has_ended_is_no_end_of_the_watch() -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        windows = Windows(time.monotonic(), 10.0)
        windows.look({"ended": ended.pid, "own": os.getpid()})
    assert windows._windows[0].memory_bytes["own"] > 0
    assert "ended" not in windows._windows[0].memory_bytes


@pytest.mark.server
def test_a_model_that_is_not_there_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--model", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "orcastream bench soak: worker-1 | " in error
    assert "config.json" in error
    assert "cannot run: exit code 2; see its lines above\n" in error


def _window(
    *, gap_s: float = 0.01, memory: int = 100 * MIB, descriptors: int = 20, errors: tuple[str, ...] = ()
) -> Window:
    window = Window(
        0, 600, errors=Counter(errors), memory_bytes={"worker": memory}, descriptors={"worker": descriptors}
    )
    window.gaps_s.append(gap_s)
    return window


@pytest.mark.parametrize(
    ("last", "complaint"),
    [
        (_window(gap_s=0.0109, memory=115 * MIB, descriptors=30), None),
        (_window(gap_s=0.012), "p99 TBT rose from 10.0 to 12.0 ms"),
        (_window(memory=120 * MIB), "worker grew from 100 to 120 MiB"),
        (_window(descriptors=40), "worker went from 20 to 40 descriptors"),
        (_window(errors=("cut off", "cut off")), "requests failed, 2 times: cut off"),
    ],
)
def test_what_counts_as_growth(last: Window, complaint: str | None) -> None:
    warm = _window(memory=60 * MIB)
    assert shortcomings([warm, _window(), last]) == ([] if complaint is None else [complaint])
    assert shortcomings([last]) == ["there are not two whole windows"]


@pytest.mark.server
def test_a_short_soak_measures_everything(tmp_path: Path) -> None:
    """Latencies and memory of so short a run mean nothing: checks only that they exist."""
    figures = tmp_path / "soak.json"
    flags = ("--minutes", "0.2", "--window", "0.1", "--capacity-seconds", "3", "--load", "0.3", "--json", str(figures))
    assert main(["soak", *flags]) in (0, 1)
    measured = json.loads(figures.read_text())
    assert measured["capacity_requests_per_s"] > 0
    assert len(measured["windows"]) == 2
    for window in measured["windows"]:
        assert window["complete"] > 0
        assert window["failed"] == 0
        assert window["ttft_ms"]["p50"] > 0
        assert window["tbt_ms"]["p99"] > 0
        assert set(window["memory_bytes"]) == set(window["descriptors"]) == {"redis", "gateway", "worker-1"}
