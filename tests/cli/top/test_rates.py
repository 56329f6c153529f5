"""Rates are computed from two reports of a worker, by its own clock; no content of Redis stops the display."""

from orcastream.broker.presence import WorkerInfo
from orcastream.cli.top.rates import RateMeter, Rates


def worker(clock_s: object, tokens: object, name: str = "w") -> WorkerInfo:
    info = {"clock_s": str(clock_s), "iterations": str(tokens), "prompt_tokens": "0", "output_tokens": str(tokens)}
    return WorkerInfo(name, info, 0)


def test_two_reports_make_a_rate_and_a_repeated_report_keeps_it() -> None:
    meter = RateMeter()
    assert meter.look([worker(10, 100)]) == {"w": Rates()}
    assert meter.look([worker(12, 150)]) == {"w": Rates(25, 0, 25)}
    assert meter.look([worker(12, 150)]) == {"w": Rates(25, 0, 25)}
    assert meter.look([worker(13, 150)]) == {"w": Rates(0, 0, 0)}


def test_dead_workers_and_junk_have_no_rates() -> None:
    meter = RateMeter()
    assert meter.look([WorkerInfo("gone", {}, 3)]) == {}
    meter.look([worker("soon", 1), worker(1, 1, "other")])
    found = meter.look([worker("later", 2), worker(2, "many", "other")])
    assert found == {"w": Rates(), "other": Rates(None, 0, None)}
    assert meter.look([WorkerInfo("w", {"state": "serving"}, 0)]) == {"w": Rates()}
