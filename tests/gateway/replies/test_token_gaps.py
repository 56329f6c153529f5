"""The pauses of a stream, and the causes between two deliveries."""

from orcastream.broker.subscription import Update
from orcastream.gateway.replies.token_gaps import TokenGaps
from orcastream.schemas.events import Run, Started
from orcastream.telemetry.histograms import Counts
from orcastream.telemetry.names import Gap


def begun(worker: str) -> Update:
    started = Started(
        worker=worker, model="m", tenant="t", priority_class="normal", entry="1-0", seed=1, prompt_tokens=1, n=1
    )
    return Update((0,), (0,), 1, started=started)


def tokens(arrived_s: float) -> Update:
    return Update((1,), (0,), 1, (Run(0, 0, (5,)),), arrived_s=arrived_s)


def test_each_pause_is_counted_once_by_its_cause() -> None:
    counts = {gap: Counts((1.0, 5.0), {}) for gap in Gap}
    gaps = TokenGaps(counts)
    gaps.took([begun("a"), tokens(10)])
    gaps.took([tokens(10.5), tokens(10.5)])
    gaps.took([])
    gaps.took([begun("b")])
    gaps.took([tokens(17)])
    gaps.took([tokens(17.25)])
    gaps.took([begun("b"), tokens(19.25)])
    gaps.took([tokens(19.5)])
    told = {gap: (one.counts, one.sum) for gap, one in counts.items()}
    assert told == {
        Gap.GENERATION: ([3, 0, 0], 1.0),
        Gap.TAKEOVER: ([0, 0, 1], 6.5),
        Gap.RECONNECT: ([0, 1, 0], 2.0),
    }


def test_tokens_that_a_slow_client_takes_late_arrived_in_time() -> None:
    counts = {gap: Counts((1.0,), {}) for gap in Gap}
    gaps = TokenGaps(counts)
    gaps.took([begun("a"), tokens(10)])
    gaps.took([tokens(10.5), tokens(11), begun("b"), tokens(15), tokens(15.5)])
    told = {gap: (one.counts, one.sum) for gap, one in counts.items()}
    assert told == {
        Gap.GENERATION: ([3, 0], 1.5),
        Gap.TAKEOVER: ([0, 1], 4.0),
        Gap.RECONNECT: ([0, 0], 0.0),
    }


def test_what_was_read_late_because_of_a_slow_client_is_no_pause() -> None:
    counts = {gap: Counts((1.0,), {}) for gap in Gap}
    gaps = TokenGaps(counts)
    gaps.took([begun("a"), tokens(3)])
    gaps.took([tokens(float("-inf")), tokens(float("-inf")), tokens(9)])
    assert [sum(one.counts) for one in counts.values()] == [0, 0, 0]
    gaps.took([tokens(9.5)])
    assert [one.sum for one in counts.values()] == [0.5, 0, 0]
