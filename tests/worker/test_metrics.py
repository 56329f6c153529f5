"""What a worker's metrics record of one request."""

import pytest

from orcastream.engine import Timeline
from orcastream.schemas.events import Ending, Terminal, Usage
from orcastream.schemas.stopping import FinishReason
from orcastream.telemetry import names
from orcastream.telemetry.histograms import histogram
from orcastream.telemetry.names import Attribute
from orcastream.worker.metrics import WorkerMetrics
from orcastream.worker.times import Times


def test_the_time_per_token_of_an_answer_published_at_its_end_is_that_of_its_computation() -> None:
    """Ranked choices, and answers that were ready before the first write, have no first token in the log before."""
    metrics = WorkerMetrics("published-at-its-end")
    times = Times(0, 0)
    timeline = Timeline()
    timeline.scheduled_s, timeline.first_token_s = times.claimed_s, times.claimed_s + 1
    times.terminal_made_s = times.claimed_s + 3
    times.first_logged_s = times.terminal_logged_s = times.claimed_s + 3.5
    terminal = Terminal((Ending(FinishReason.STOP, 5),), Usage(1, 5))
    metrics.served("high", terminal, times, [timeline], continued=False)
    [counts] = [
        one
        for one in histogram(names.TIME_PER_OUTPUT_TOKEN).all_counts()
        if (one.labels[Attribute.MODEL], one.labels[Attribute.REQUEST_CLASS]) == ("published-at-its-end", "high")
    ]
    assert (sum(counts.counts), counts.sum) == (1, pytest.approx(0.5))
