"""The complete result of a benchmark as plain values: medians first, then every run, and the conditions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orcastream.bench.figures.curve import Point, sustained
from orcastream.bench.figures.json_file import write_json
from orcastream.bench.figures.machine import machine, versions
from orcastream.bench.figures.medians import extremes, medians, ratios


@dataclass
class Variant:
    """One configuration that serves the workload: its settings, and the figures of each run.

    For variants measured at several loads, `curve` names the configuration and `load` is the requests per second or the
    number of clients.
    """

    name: str
    settings: Mapping[str, Any]
    curve: str = ""
    load: float | None = None
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, Any]:
        """Return medians over the runs."""
        return medians(self.runs)

    def to_json(self) -> dict[str, Any]:
        """Return medians, `spread` (minimum and maximum of each figure), `settings` and `runs`."""
        return {**self.figures, "spread": extremes(self.runs), "settings": dict(self.settings), "runs": self.runs}


@dataclass
class Result:
    """Variants in order; the first is the baseline for the others."""

    command: str
    model: Mapping[str, Any]
    workload: Mapping[str, Any]
    variants: Sequence[Variant]
    machine: Mapping[str, Any] = field(default_factory=machine)
    versions: Mapping[str, str] = field(default_factory=versions)
    latency_limit_ms: float | None = None

    @property
    def measured(self) -> list[Variant]:
        """Return the variants with at least one run."""
        return [variant for variant in self.variants if variant.runs]

    def curves(self) -> dict[str, list[Point]]:
        """Return throughput and latency by load for each curve; empty without a sweep."""
        found: dict[str, list[Point]] = {}
        for variant in self.measured:
            if variant.load is not None:
                found.setdefault(variant.curve, []).append(Point.of(variant.load, variant.figures))
        return {name: sorted(points, key=lambda point: point.load) for name, points in found.items()}

    def sustained_loads(self) -> dict[str, float | None]:
        """Return each curve's load at which its median normalized latency reaches the limit; empty without a limit."""
        if self.latency_limit_ms is None:
            return {}
        return {name: sustained(points, self.latency_limit_ms) for name, points in self.curves().items()}

    def _sustained(self) -> dict[str, Any]:
        loads = self.sustained_loads()
        first = next(iter(loads.values()), None)
        compared = {name: load / first for name, load in loads.items() if load is not None and first}
        return {"latency_limit_ms": self.latency_limit_ms, "load": loads, "ratio_to_first": compared}

    def to_json(self) -> dict[str, Any]:
        """Return the first variant's figures at the top level, and all under `variants`, with ratios to the first."""
        measured = self.measured
        first = measured[0].figures if measured else {}
        top = measured[0].to_json() if measured else {}
        variants = {}
        for variant in measured:
            compared = {} if variant is measured[0] else {"ratio_to_first": ratios(first, variant.figures)}
            variants[variant.name] = {**variant.to_json(), **compared}
        return {
            **top,
            "command": self.command,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "model": dict(self.model),
            "workload": dict(self.workload),
            "variants": variants,
            "curves": {name: [point.to_json() for point in points] for name, points in self.curves().items()},
            "sustained": self._sustained(),
        }

    def save(self, path: Path) -> None:
        """Write the result as JSON. Raises UserError."""
        write_json(path, self.to_json())
