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


TOKENS = Update((1,), (0,), 1, (Run(0, 0, (5,)),))


def test_each_pause_is_counted_once_by_its_cause() -> None:
    counts = {gap: Counts((1.0, 5.0), {}) for gap in Gap}
    gaps = TokenGaps(counts)
    gaps.took([begun("a"), TOKENS], 10)
    gaps.took([TOKENS, TOKENS], 10.5)
    gaps.took([], 13)
    gaps.took([begun("b")], 16)
    gaps.took([TOKENS], 17)
    gaps.took([TOKENS], 17.25)
    gaps.took([begun("b"), TOKENS], 19.25)
    gaps.took([TOKENS], 19.5)
    told = {gap: (one.counts, one.sum) for gap, one in counts.items()}
    assert told == {
        Gap.GENERATION: ([3, 0, 0], 1.0),
        Gap.TAKEOVER: ([0, 0, 1], 6.5),
        Gap.RECONNECT: ([0, 1, 0], 2.0),
    }


def test_tokens_replayed_on_resume_count_as_no_pause() -> None:
    counts = {gap: Counts((1.0,), {}) for gap in Gap}
    TokenGaps(counts).took([begun("a"), TOKENS], 10)
    assert [sum(one.counts) for one in counts.values()] == [0, 0, 0]
