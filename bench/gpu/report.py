"""The results, as tables and as plain values, stored as they arrive."""

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from orcastream.bench.figures.json_file import write_json


class Report:
    """Sections of rows in order of arrival; every row of a section has the same columns."""

    def __init__(self, about: dict[str, Any], written: Path | None = None) -> None:
        """After each row, all rows are saved to the file `written`, so that results survive any end of the run."""
        self._about = about
        self._written = written
        self._sections: dict[str, list[dict[str, Any]]] = {}
        self._console = Console(width=120, highlight=False)
        self._progress = Console(width=120, highlight=False, stderr=True)

    def add(self, section: str, **row: Any) -> None:
        """Add a row; floats are displayed with few digits and stored with all."""
        self._sections.setdefault(section, []).append(row)
        self._progress.print(f"{section}: {', '.join(map(_text, row.values()))}", markup=False, soft_wrap=True)
        self._write()

    def show(self) -> None:
        """Print the conditions and the results."""
        gpu = self._about.get("gpu", {}).get("name", "no GPU, interpreted")
        found = ", ".join(f"{name} {version}" for name, version in self._about["versions"].items())
        self._console.print(f"{self._about['command']}\n{gpu}; {found}; seed {self._about['seed']}", soft_wrap=True)
        for section, rows in self._sections.items():
            table = Table(*rows[0], title=section, title_justify="left", box=box.SIMPLE)
            for row in rows:
                table.add_row(*map(_text, row.values()))
            self._console.print(table)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**self._about, "results": self._sections}

    def _write(self) -> None:
        if self._written is not None:
            write_json(self._written, self.to_json())


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
