"""Figures and verdicts from the clients' observations."""

from dataclasses import astuple

import pytest

from orcastream.bench.figures.measures import measure
from orcastream.bench.figures.outcome import Objectives, Outcome
from orcastream.bench.figures.spread import Spread
from orcastream.bench.serve.report import Report
from orcastream.bench.workloads import SampleRequest

KINDS = ("429 queue_full", "429 wait_too_long", "cut off")


def answered(text: str = "4", *, arrived: float = 0.0, pieces: tuple[float, ...] = (1.0, 1.5, 3.0)) -> Outcome:
    outcome = Outcome(
        SampleRequest("2 + 2?", "4"), arrived, list(pieces), text, tokens=len(pieces), finish_reason="stop"
    )
    outcome.ended_s = pieces[-1]
    return outcome


def failed(error: str) -> Outcome:
    return Outcome(SampleRequest("2 + 2?", "4"), 0.0, error=error)


def test_percentiles_are_between_neighbors() -> None:
    spread = Spread.of([4.0, 1.0, 3.0, 2.0, 5.0])
    assert spread is not None
    assert astuple(spread) == pytest.approx((3.0, 3.0, 4.8, 4.96, 5.0, 5))
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 7.0, 7.0, 1)
    assert Spread.of([]) is None


def test_latencies_count_from_the_arrival() -> None:
    outcome = answered(arrived=0.25)
    assert (outcome.ttft_s, outcome.e2e_s, outcome.gaps_s) == (0.75, 2.75, [0.5, 1.5])


def test_tokens_after_the_load_do_not_count() -> None:
    figures = measure([answered(), answered(pieces=(0.5, 2.5))], 0.0, 2.0, Objectives())
    assert figures["output_tokens"] == 5
    assert figures["output_tokens_per_s"] == pytest.approx((2 + 1) / 2)
    assert figures["requests_per_s"] == 0, "none of them ended during the load"


def test_errors_are_counted_by_kind_and_make_the_run_fail() -> None:
    report = Report([answered(), failed("429 queue_full"), failed("429 wait_too_long"), failed("cut off")], 0.0, 4.0)
    assert report.failed() == [f"1 of 4 requests failed: {kind}" for kind in KINDS]
    assert report.failed(allow_refusals=True) == ["1 of 4 requests failed: cut off"]
    assert report.figures(Objectives())["errors"] == dict.fromkeys(KINDS, 1)
    assert report.spreads()["TTFT"] == Spread(1.0, 1.0, 1.0, 1.0, 1.0, 1), "only complete answers"


def test_a_wrong_answer_fails_if_exact_ones_are_required() -> None:
    report = Report([answered(), answered("5")], 0.0, 4.0)
    assert (report.exact, report.comparable, report.failed()) == (1, 2, [])
    assert report.failed(require_exact=True) == ["1 of 2 answers differ from the known ones"]


def test_a_deliberately_cut_answer_is_not_compared() -> None:
    outcome = answered("4")
    outcome.request = SampleRequest("2 + 2?", "4", max_tokens=1)
    assert outcome.exact is None
    report = Report([outcome], 0.0, 4.0)
    assert (report.comparable, report.failed()) == (0, [])
    assert report.failed(require_exact=True) == ["no answer could be compared with a known one"]


def test_no_request_at_all_is_a_failure() -> None:
    assert Report([], 0.0, 4.0).failed() == ["no request was made"]


def test_an_answer_of_two_workers_has_moved() -> None:
    stayed, moved = answered(), answered()
    stayed.workers, moved.workers = ["a", "a"], ["a", "b"]
    assert Report([stayed, moved], 0.0, 4.0).moved == 1
