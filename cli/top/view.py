"""The screen of `orcastream top`."""

import time
from collections.abc import Mapping
from typing import Any, Final

from rich import box
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from orcastream.cli.console.output import shown

_BAR_WIDTH: Final = 10
_WIDE: Final = 110
"""Minimum terminal width, in columns, for bars."""
_LEAST_WIDTH: Final = 7
_STATE_STYLES: Final = {"serving": "green", "draining": "yellow", "stalled": "bold red", "gone": "bold red"}


def view(told: Mapping[str, Any], width: int, problem: str = "") -> RenderableType:
    """Return a snapshot for a screen of `width` columns; `problem` says why there is no newer one."""
    return Group(_head(told, problem), _queue(told), _workers(told, has_bars=width >= _WIDE))


def _head(told: Mapping[str, Any], problem: str) -> Text:
    rates = told["rates"]
    clock = time.strftime("%H:%M:%S", time.localtime(told["time_ms"] / 1000))
    head = Text.assemble((f"orcastream {told['model']}", "bold"), f"  {clock}  ")
    head.append(f"{_rate(rates['output_tokens'])} tokens/s out, {_rate(rates['prompt_tokens'])} in")
    if told["dead_letters"]:
        head.append(f"  {told['dead_letters']} dead letters", style="bold red")
    if problem:
        head.append(f"\n{problem}", style="bold red")
    return head


def _queue(told: Mapping[str, Any]) -> Table:
    table = _table("class", "waiting", "claimed", "oldest waits")
    for row in told["queue"]:
        oldest = shown(row["oldest_s"], seconds=True) if row["oldest_s"] else "-"
        table.add_row(row["class"], str(row["waiting"]), str(row["claimed"]), oldest)
    return table


def _workers(told: Mapping[str, Any], *, has_bars: bool) -> RenderableType:
    if not told["workers"]:
        return Text("no worker", style="bold red")
    bar = [""] if has_bars else []
    table = _table("worker", "state", "batch", *bar, "iter/s", "tokens/s", "KV blocks", "preempted", "holds")
    for worker in told["workers"]:
        rates = worker["rates"]
        table.add_row(
            shown(worker["worker"], seconds=False),
            Text(shown(worker["state"], seconds=False), style=_STATE_STYLES.get(worker["state"], "")),
            _of(worker["running"], worker["capacity"]),
            *[_bar(worker["running"], worker["capacity"]) for _ in bar],
            _rate(rates["iterations"]),
            _rate(rates["output_tokens"]),
            _of(worker["blocks_used"], worker["blocks_total"]),
            shown(worker["preemptions"], seconds=False),
            str(worker["holds"]),
        )
    return table


def _table(first: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    # Only this column becomes narrower on a narrow screen. Its names have no space to wrap at.
    table.add_column(first, overflow="ellipsis", min_width=_LEAST_WIDTH)
    for name in columns:
        justify: JustifyMethod = "left" if name in ("", "state") else "right"
        table.add_column(name, justify=justify, no_wrap=True, min_width=max(len(name), _LEAST_WIDTH))
    return table


def _of(part: int | None, whole: int | None) -> str:
    return "-" if part is None or whole is None else f"{part}/{whole}"


def _bar(part: int | None, whole: int | None) -> Text:
    if part is None or not whole:
        return Text("")
    full = round(_BAR_WIDTH * min(max(part / whole, 0), 1))
    return Text.assemble(("█" * full, "green"), ("░" * (_BAR_WIDTH - full), "dim"))


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}"
