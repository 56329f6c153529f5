"""The results as JSON and as tables."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from orcastream.bench.figures.medians import extremes, medians
from orcastream.bench.peers.contest import Absence, Row
from orcastream.bench.peers.systems import OWN


class Report:
    """Rows with at least one run, absent systems, and the conditions (`setting`)."""

    def __init__(self, rows: Sequence[Row], absent: Sequence[Absence], setting: Mapping[str, Any]) -> None:
        self._rows = [row for row in rows if row.runs]
        self._absent = absent
        self._setting = setting
        self._own = {(row.workload, row.dtype): _speed(row) for row in self._rows if row.system == OWN}

    def to_json(self) -> dict[str, Any]:
        """Return `results`, `absent`, and the setting. `ratio` is this engine's median divided by the row's."""
        return {
            **self._setting,
            "results": [self._row(row) for row in self._rows],
            "absent": [vars(absence) for absence in self._absent],
        }

    def show(self, console: Console) -> None:
        """Print the setting, a table, and the absent systems."""
        host = self._setting["machine"]
        console.print(
            f"machine: {host['cores']} cores, {host['cpu_model']}, {host['memory_bytes'] / 2**30:.1f} GiB, "
            f"{host['system']}, {host['threads']} threads",
            soft_wrap=True,
        )
        for name in ("versions", "model", "workload"):
            told = (f"{key} {value}" for key, value in self._setting[name].items() if value is not None)
            console.print(f"{name}: {', '.join(told)}", soft_wrap=True)
        console.print(f"command: {self._setting['command']}", soft_wrap=True)
        console.print(self._table())
        for absence in self._absent:
            console.print(f"absent: {absence.system} {absence.dtype}: {absence.why}", soft_wrap=True)

    def _row(self, row: Row) -> dict[str, Any]:
        figures = medians(row.runs)
        return {
            "system": row.system,
            "version": row.version,
            "workload": row.workload,
            "dtype": row.dtype,
            "output_tokens_per_s": [run["output_tokens_per_s"] for run in row.runs],
            "ttft_ms": figures["ttft_ms"],
            "tbt_ms": figures["tbt_ms"],
            "answering": figures["answering"],
            "spread": extremes(row.runs),
            "ratio": self._ratio(row),
        }

    def _ratio(self, row: Row) -> float | None:
        own = self._own.get((row.workload, row.dtype))
        return None if own is None else own / _speed(row)

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE, pad_edge=False)
        for heading in ("workload", "dtype", "system", "version"):
            table.add_column(heading)
        for heading in (
            "output tokens/s",
            "lowest … highest",
            "TTFT p50 / p99, ms",
            "TBT p50 / p99, ms",
            "answering, mean / max",
            f"{OWN} to it",
        ):
            table.add_column(heading, justify="right")
        for row in self._rows:
            speeds, figures, ratio = (
                [run["output_tokens_per_s"] for run in row.runs],
                medians(row.runs),
                self._ratio(row),
            )
            table.add_row(
                row.workload,
                row.dtype,
                row.system,
                row.version,
                f"{_speed(row):,.1f}",
                f"{min(speeds):,.1f} … {max(speeds):,.1f}",
                *(_shown(figures[name]) for name in ("ttft_ms", "tbt_ms")),
                f"{figures['answering']['mean']:.1f} / {figures['answering']['max']:.0f}",
                "-" if ratio is None else f"{ratio:.2f} x",
            )
        return table


def _shown(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['p50']:,.0f} / {spread['p99']:,.0f}"


def _speed(row: Row) -> float:
    return float(statistics.median(run["output_tokens_per_s"] for run in row.runs))
