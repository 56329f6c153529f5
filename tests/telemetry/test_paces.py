"""What panels show of a change, and how soon, evaluated by promtool's Prometheus: at each interval and phase."""

import subprocess
from pathlib import Path

import pytest
import yaml

from orcastream.telemetry.dashboards import PACES
from orcastream.telemetry.dashboards.dashboard import Dashboard
from orcastream.telemetry.dashboards.pace import SCRAPED, Pace
from orcastream.telemetry.dashboards.redis_and_workers import REDIS_AND_WORKERS
from orcastream.telemetry.dashboards.service import SERVICE
from tests.telemetry.prometheus_binaries import NONE_FOUND, PROMETHEIS

pytestmark = pytest.mark.skipif(not PROMETHEIS, reason=NONE_FOUND)

PER_S = 10
BEGIN_S, PEAK_S = 300, 300


def expression(dashboard: Dashboard, title: str, pace: Pace, **chosen: str) -> str:
    """Return the expression of a panel's first line, as Grafana fills it in; without a choice, a variable is `.*`."""
    [panel] = (panel for panel in dashboard.to_grafana(pace)["panels"] if panel["title"] == title)
    text: str = panel["targets"][0]["expr"]
    filled_in = text.replace("$__rate_interval", f"{4 * pace.every_s}s")
    for variable in ("job", "instance", "model", "class"):
        filled_in = filled_in.replace(f"${variable}", chosen.get(variable, ".*"))
    return filled_in


def evaluate(series: dict[str, str], tests: list[dict[str, object]], pace: Pace, folder: Path) -> None:
    """Have every promtool compare expressions over `series`, values by name and labels, with what `tests` expect."""
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": pace.every, "input_series": inputs, "promql_expr_test": tests}
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "1s", "tests": [test]}))
    for prometheus in PROMETHEIS:
        done = subprocess.run([prometheus.promtool, "test", "rules", file], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr


def counted(at_s: float) -> float:
    """Return the counter at a time: a peak of PER_S between two idle periods."""
    return PER_S * min(max(at_s - BEGIN_S, 0), PEAK_S)


@pytest.mark.parametrize("pace", PACES.values(), ids=lambda pace: pace.every)
@pytest.mark.parametrize("phase", [0, 0.3, 0.6, 0.9])
def test_rates_are_correct_after_four_intervals(pace: Pace, phase: float, tmp_path: Path) -> None:
    """For a peak and its end, at `phase` of an interval after the sample of the change."""
    shift_s = phase * pace.every_s
    times = range(0, BEGIN_S + 2 * PEAK_S + 1, pace.every_s)
    series = 'orcastream_admission_refusals_total{error_type="x", job="g", instance="g1", gen_ai_request_model="m"}'
    values = " ".join(f"{counted(at_s - shift_s):g}" for at_s in times)
    late = [BEGIN_S + shift_s + after_s for after_s in range(4 * pace.every_s, 4 * pace.every_s + 60)]
    expected = [(at_s, PER_S) for at_s in late] + [(at_s + PEAK_S, 0) for at_s in late]
    refusals = expression(SERVICE, "Refusals", pace)
    tests: list[dict[str, object]] = [
        {
            "expr": f"abs({refusals} - {rate}) < bool {PER_S / 100}",
            "eval_time": f"{round(1000 * at_s)}ms",
            "exp_samples": [{"labels": '{error_type="x"}', "value": 1}],
        }
        for at_s, rate in expected
    ]
    evaluate({series: values}, tests, pace, tmp_path)


@pytest.mark.parametrize("pace", PACES.values(), ids=lambda pace: pace.every)
@pytest.mark.parametrize("title", ["Takeovers", "Dead letters"])
def test_a_failed_scrape_is_no_event(title: str, pace: Pace, tmp_path: Path) -> None:
    """A scrape that fails interrupts the series at once; afterwards, the counter has its old value."""
    counter = f"orcastream_{title.lower().replace(' ', '_')}_total"
    series = f'{counter}{{job="w", instance="w1", gen_ai_request_model="m"}}'
    tests: list[dict[str, object]] = [
        {
            "expr": f"({expression(REDIS_AND_WORKERS, title, pace)}) > 0",
            "eval_time": f"{interval * pace.every_s}s",
            "exp_samples": [],
        }
        for interval in range(10, 40)
    ]
    evaluate({series: "500x20 stale 500x20"}, tests, pace, tmp_path)


@pytest.mark.parametrize("pace", PACES.values(), ids=lambda pace: pace.every)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("0x10 1x30", [0, 1, 1, 1, 1, 0]),
        ("_x11 2x30", [None, 2, 2, 2, 2, 0]),
        ("5x10 8x30", [0, 3, 3, 3, 3, 0]),
        ("5x10 1x30", [0, 1, 1, 1, 1, 0]),
    ],
    ids=["first", "with the series", "further", "with a new process"],
)
def test_events_are_counted_as_they_are(values: str, expected: list[int | None], pace: Pace, tmp_path: Path) -> None:
    """Without extrapolation: one event is 1, in each of the four intervals."""
    query = expression(REDIS_AND_WORKERS, "Takeovers", pace)
    tests: list[dict[str, object]] = [
        {
            "expr": query,
            "eval_time": f"{interval * pace.every_s}s",
            "exp_samples": [] if count is None else [{"labels": '{instance="w1"}', "value": count}],
        }
        for interval, count in enumerate(expected, 10)
    ]
    evaluate(
        {'orcastream_takeovers_total{job="w", instance="w1", gen_ai_request_model="m"}': values}, tests, pace, tmp_path
    )


@pytest.mark.parametrize(("values", "expected"), [("_x10 500x30", None), ("500x10 501x30", 1), ("500x10 2x30", 2)])
def test_what_redis_counted_before_is_not_shown(values: str, expected: int | None, tmp_path: Path) -> None:
    tests: list[dict[str, object]] = [
        {
            "expr": expression(REDIS_AND_WORKERS, "Refused, evicted, slow", SCRAPED),
            "eval_time": f"{11 * SCRAPED.every_s}s",
            "exp_samples": [] if expected is None else [{"labels": "{}", "value": expected}],
        }
    ]
    evaluate({'orcastream_redis_connections_rejected_total{job="g", instance="g1"}': values}, tests, SCRAPED, tmp_path)


@pytest.mark.parametrize("chosen", ["low|normal", "low"])
def test_errors_are_those_of_all_classes(chosen: str, tmp_path: Path) -> None:
    """Requests that were turned away have no class, so the share cannot be one class's."""
    labels = 'job="g", instance="g1", gen_ai_request_model="m", orcastream_request_class="normal"'
    series = {
        f'orcastream_requests_ended_total{{{labels}, orcastream_outcome="stop"}}': "0+30x40",
        f'orcastream_gateway_replies_broken_total{{{labels}, error_type="unavailable"}}': "0+10x40",
    }
    errors = {
        "expr": expression(SERVICE, "Errors", SCRAPED, **{"class": chosen}),
        "eval_time": "5m",
        "exp_samples": [{"labels": "{}", "value": 0.25}],
    }
    evaluate(series, [errors], SCRAPED, tmp_path)


@pytest.mark.parametrize(("tokens", "expected"), [("0+10x40", 0.5), ("100x40", None)], ids=["busy", "idle"])
def test_commands_per_token_have_no_infinite_value(tokens: str, expected: float | None, tmp_path: Path) -> None:
    """An idle worker sends commands, and no token: their quotient would spoil the legend's mean and maximum."""
    process = 'job="w", instance="w1"'
    series = {
        f"orcastream_redis_commands_total{{{process}}}": "0+5x40",
        f'orcastream_tokens_total{{{process}, gen_ai_request_model="m", gen_ai_token_type="output"}}': tokens,
    }
    shown = [] if expected is None else [{"labels": "{}", "value": expected}]
    query = expression(REDIS_AND_WORKERS, "Commands per output token", SCRAPED)
    evaluate(series, [{"expr": query, "eval_time": "300s", "exp_samples": shown}], SCRAPED, tmp_path)
