"""The check of queries finds the faults that it is meant to find."""

import pytest

from tests.telemetry.promql import WrongQuery, check

RATE = "rate(orcastream_takeovers_total[5m])"
BUCKETS = "rate(orcastream_engine_iteration_duration_seconds_bucket[5m])"


@pytest.mark.parametrize(
    ("query", "labels"),
    [
        (f"sum by (instance) ({RATE})", {"instance"}),
        (f"histogram_quantile(0.9, sum by (le, job) ({BUCKETS}))", {"job"}),
        ("max(orcastream_queue_length) > 3", set()),
        (
            "max_over_time(orcastream_queue_age_seconds[5m])",
            {"job", "instance", "gen_ai_request_model", "orcastream_request_class"},
        ),
        ('sum(rate(gen_ai_server_time_to_first_token_seconds_bucket{le="2.5"}[5m]))', set()),
        (
            "orcastream_takeovers_total unless orcastream_takeovers_total offset 15m",
            {"job", "instance", "gen_ai_request_model"},
        ),
        (
            "sum by (instance) ((orcastream_takeovers_total - orcastream_takeovers_total offset 1m >= 0) "
            "or orcastream_takeovers_total)",
            {"instance"},
        ),
        (
            "sum by (job) (rate(orcastream_requests_ended_total[5m]) or rate(orcastream_admission_refusals_total[5m]))",
            {"job"},
        ),
        ("sum(orcastream_workers) > 2 * scalar(sum(orcastream_workers))", set()),
    ],
)
def test_valid_queries_pass_and_return_their_labels(query: str, labels: set[str]) -> None:
    assert check(query) == labels


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("sum(rate(orcastream_takeover_total[5m]))", "nothing emits it"),
        ("sum(orcastream_takeovers_total)", "not to be read through nothing"),
        ("rate(orcastream_queue_length[5m])", "not to be read through rate"),
        ("max_over_time(orcastream_takeovers_total[5m])", "not to be read through max_over_time"),
        ('sum(rate(orcastream_takeovers_total{orcastream_request_class="low"}[5m]))', "no label"),
        (f"sum by (orcastream_phase) ({RATE})", "not a label there"),
        (f"sum without (job) ({RATE})", "without"),
        (f"histogram_quantile(0.9, sum by (job) ({BUCKETS}))", "added up"),
        ("histogram_quantile(0.9, orcastream_queue_length)", "without buckets"),
        (f"sum({BUCKETS})", "added up"),
        (BUCKETS, "as they are"),
        ("sum by (job) (orcastream_workers) / sum by (instance) (orcastream_workers)", "nothing matches"),
        ("sum by (job) (orcastream_workers) unless on (instance) sum(orcastream_workers)", "not a label of both"),
        ("orcastream_takeovers_total unless orcastream_takeovers_total", "not to be read"),
        ("(orcastream_takeovers_total - orcastream_takeovers_total >= 0) or orcastream_takeovers_total", "not to be"),
        ("(orcastream_takeovers_total - orcastream_workers offset 1m >= 0) or orcastream_takeovers_total", "not to be"),
        ('orcastream_takeovers_total{pod="x"} unless orcastream_takeovers_total offset 15m', "no label"),
        ("topk(3, orcastream_workers)", "does not know"),
        ("deriv(orcastream_workers[5m])", "does not know"),
    ],
)
def test_wrong_queries_are_detected(query: str, says: str) -> None:
    with pytest.raises(WrongQuery, match=says):
        check(query)
