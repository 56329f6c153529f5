"""Results of a load run: figures, errors by kind, and the number of exact answers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from orcastream.bench.figures.measures import measure
from orcastream.bench.figures.outcome import Objectives, Outcome
from orcastream.bench.figures.spread import Spread

_REFUSED = "429 "
"""Prefixes of the kinds of errors by which a service protects itself."""


@dataclass(frozen=True)
class Report:
    """Figures of a finished run that began at `begun_s` and was under load until `until_s`."""

    outcomes: Sequence[Outcome]
    begun_s: float
    until_s: float

    @property
    def errors(self) -> Counter[str]:
        """Number of failed requests by kind."""
        return Counter(outcome.error for outcome in self.outcomes if outcome.error is not None)

    @property
    def complete(self) -> int:
        """Number of requests whose whole answer arrived."""
        return sum(outcome.complete for outcome in self.outcomes)

    @property
    def exact(self) -> int:
        """Number of answers that match the known one exactly."""
        return sum(outcome.exact is True for outcome in self.outcomes)

    @property
    def comparable(self) -> int:
        """Number of complete answers for which the correct one is known."""
        return sum(outcome.complete and outcome.exact is not None for outcome in self.outcomes)

    @property
    def moved(self) -> int:
        """Number of answers by more than one worker."""
        return sum(len(set(outcome.workers)) > 1 for outcome in self.outcomes)

    def spreads(self) -> dict[str, Spread | None]:
        """TTFT, TBT and E2E of the complete answers."""
        complete = [outcome for outcome in self.outcomes if outcome.complete]
        return {
            "TTFT": Spread.of(outcome.ttft_s for outcome in complete if outcome.ttft_s is not None),
            "TBT": Spread.of(gap for outcome in complete for gap in outcome.gaps_s),
            "E2E": Spread.of(outcome.e2e_s for outcome in complete if outcome.e2e_s is not None),
        }

    def failed(self, *, allow_refusals: bool = False, require_exact: bool = False) -> list[str]:
        """Return failures as sentences; empty if there are none.

        `allow_refusals`: 429 with any code is not a failure, for runs that overload the service deliberately.
        """
        complaints = [
            f"{count} of {len(self.outcomes)} requests failed: {kind}"
            for kind, count in self.errors.most_common()
            if not (allow_refusals and kind.startswith(_REFUSED))
        ]
        if not self.outcomes:
            complaints.append("no request was made")
        if require_exact and not self.comparable:
            complaints.append("no answer could be compared with a known one")
        if require_exact and self.exact < self.comparable:
            complaints.append(f"{self.comparable - self.exact} of {self.comparable} answers differ from the known ones")
        return complaints

    def figures(self, objectives: Objectives) -> dict[str, Any]:
        """Return everything as plain values. The engine's own figures are None, because HTTP does not provide them."""
        prompt_tokens = sum(outcome.prompt_tokens - outcome.cached_tokens for outcome in self.outcomes)
        return {
            **measure(self.outcomes, self.begun_s, self.until_s, objectives),
            "prompt_tokens_computed": prompt_tokens,
            "comparable": self.comparable or None,
            "exact": self.exact if self.comparable else None,
            "moved": self.moved,
            **dict.fromkeys(("kv_waste", "kv_use", "preemptions", "scheduler_ms")),
        }

    def table(self) -> Table:
        """Return a table of latencies in milliseconds."""
        table = Table(box=box.SIMPLE, pad_edge=False)
        table.add_column("ms")
        for heading in ("p50", "p95", "p99", "highest"):
            table.add_column(heading, justify="right", min_width=9)
        for name, spread in self.spreads().items():
            values = (spread.p50, spread.p95, spread.p99, spread.highest) if spread else ()
            table.add_row(name, *(f"{value * 1000:.1f}" for value in values))
        return table

    def summary(self) -> str:
        """Return counts and rates in a few lines."""
        seconds = self.until_s - self.begun_s
        tokens = sum(outcome.tokens for outcome in self.outcomes)
        lines = [
            f"{len(self.outcomes)} requests in {seconds:.1f} s ({len(self.outcomes) / seconds:.2f}/s), "
            f"{self.complete} complete, {tokens} output tokens",
            f"{self.exact} of {self.comparable} answers with a known text are exact",
            *(f"{count} failed: {kind}" for kind, count in self.errors.most_common()),
        ]
        return "\n".join(lines)
