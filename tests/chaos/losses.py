"""Acknowledged writes that Redis itself lost: which may be gone, which were, and who must be told."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.chaos.record import Log, Seen
from tests.chaos.wire import LogEntry

TOLD = frozenset({"lost", "reply_conflict", "unknown"})
"""Ends by which a client learns that Redis lost something of its request."""
_NEVER = float("-inf")
_SHOWN_S = 0.3
"""From the log to the client's eyes."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss: acknowledged writes from between these times (monotonic) may be gone."""

    begin: float
    end: float

    @property
    def is_whole(self) -> bool:
        """Whether Redis lost everything."""
        return self.begin == _NEVER

    def __contains__(self, at: float) -> bool:
        return self.begin <= at <= self.end

    def concerns(self, seen: Seen) -> bool:
        """Whether any part of the request was written in between."""
        begun_at = seen.posted_at or seen.accepted_at
        return begun_at is not None and begun_at <= self.end and (seen.ended_at is None or seen.ended_at >= self.begin)


@dataclass
class Losses:
    """All losses of a run. `entries` and `told` count what was lost."""

    all: Sequence[Loss]
    entries: dict[Loss, list[float]] = field(default_factory=dict)
    """When each entry of a reply log that was lost had been seen."""
    told: list[str] = field(default_factory=list)
    """Requests whose clients were told so."""

    def concern(self, seen: Seen) -> bool:
        """Whether any part of the request may have been lost."""
        return any(loss.concerns(seen) for loss in self.all)

    def took_the_end(self, seen: Seen) -> bool:
        """Whether the client may have been shown an end that Redis then lost."""
        return seen.ended_at is not None and any(seen.ended_at - _SHOWN_S in loss for loss in self.all)

    def may_lack(self, at: float) -> bool:
        """Whether a write at this time may be gone; counts it as gone."""
        for loss in self.all:
            if at in loss:
                self.entries.setdefault(loss, []).append(at)
                return True
        return False

    def as_answered(self, seen: Seen, log: Log) -> Log:
        """Return the log to compare the client's end with. If the terminal was lost, this is the log as watched, unless
        the client saw a different end, which the final log holds: a cancel may be lost together with its terminal
        event.
        """
        final = {one.id for one in log.final}
        seen_at = list(zip(log.watched, log.times, strict=True))
        lost = [(one, at) for one, at in seen_at if one.is_terminal and one.id not in final]
        if not (lost and self.concern(seen)):
            return log
        end, end_at = lost[0]
        if end.outcome != seen.ended and any(one.is_terminal and one.outcome == seen.ended for one in log.final):
            return log
        forgotten_at = max((loss.end for loss in self.all if loss.is_whole and loss.end < end_at), default=_NEVER)
        answered = list(_up_to([one for one, at in seen_at if at > forgotten_at], end))
        return replace(log, final=_without_replaced(answered, final))

    @property
    def longest_s(self) -> float:
        """Return the longest time from the first to the last entry of one loss."""
        return max((max(times) - min(times) for times in self.entries.values()), default=0.0)


def _without_replaced(entries: Sequence[LogEntry], final: set[str]) -> list[LogEntry]:
    """Return the entries without those that an earlier loss had taken and that were rewritten: the first of two entries
    for one position.
    """
    least: dict[int, int] = {}
    kept: list[LogEntry] = []
    for one in reversed(entries):
        runs = one.event.get("output", ())
        replaced = any(run["position"] >= least.get(run["choice"], run["position"] + 1) for run in runs)
        if not replaced or one.id in final:
            kept.append(one)
            least |= {run["choice"]: min(run["position"], least.get(run["choice"], run["position"])) for run in runs}
    return kept[::-1]


def _up_to(entries: Sequence[LogEntry], last: LogEntry) -> Iterator[LogEntry]:
    for one in entries:
        yield one
        if one is last:
            return
