"""The data recorded by an autoscaling run, as a file from which it is plotted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orcastream.bench.figures.json_file import write_json


@dataclass(frozen=True)
class Sample:
    """One sample of the site, `at_s` seconds after the start."""

    at_s: float
    queue: int
    """Requests waiting and running: the sum of XLEN of all request streams."""
    wanted: int
    ready: int
    starting: int
    draining: int


@dataclass(frozen=True)
class Served:
    """One request: its arrival, its time to the first token and to the end, and the workers that served it."""

    arrived_s: float
    ttft_s: float | None
    e2e_s: float | None
    exact: bool
    workers: tuple[str, ...]


@dataclass
class Series:
    """The whole run: its `settings`, its samples, and `marks`, moments that get a line in the plot."""

    settings: Mapping[str, Any]
    samples: list[Sample] = field(default_factory=list)
    requests: list[Served] = field(default_factory=list)
    marks: dict[str, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the series as JSON. Raises UserError."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> "Series":
        """Read a file written by `save`."""
        raw = json.loads(path.read_text(encoding="utf-8"))
        samples = [Sample(**item) for item in raw["samples"]]
        requests = [Served(**{**item, "workers": tuple(item["workers"])}) for item in raw["requests"]]
        return cls(raw["settings"], samples, requests, raw["marks"])

    def column(self, name: str) -> Sequence[float]:
        """Return one field of all samples."""
        return [getattr(sample, name) for sample in self.samples]
