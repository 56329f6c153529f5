"""Tables of a result for the terminal."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from orcastream.bench.figures.medians import extremes, ratios
from orcastream.bench.figures.result import Result, Variant

_ROWS = (
    ("requests/s", "requests_per_s", ",.2f"),
    ("output tokens/s", "output_tokens_per_s", ",.1f"),
    ("total tokens/s", "total_tokens_per_s", ",.1f"),
    ("TTFT mean, ms", "ttft_ms.mean", ",.1f"),
    ("TTFT p50, ms", "ttft_ms.p50", ",.1f"),
    ("TTFT p99, ms", "ttft_ms.p99", ",.1f"),
    ("TBT p50, ms", "tbt_ms.p50", ",.1f"),
    ("TBT p99, ms", "tbt_ms.p99", ",.1f"),
    ("TPOT mean, ms", "tpot_ms.mean", ",.1f"),
    ("E2E p50, ms", "e2e_ms.p50", ",.1f"),
    ("E2E p99, ms", "e2e_ms.p99", ",.1f"),
    ("E2E per token p50, ms", "normalized_latency_ms.p50", ",.1f"),
    ("goodput, requests/s", "goodput.requests_per_s", ",.2f"),
    ("goodput, share", "goodput.share", ".1%"),
    ("prompt tokens computed", "prompt_tokens_computed", ",.0f"),
    ("prompt tokens cached", "prompt_tokens_cached", ",.0f"),
    ("KV use", "kv_use", ".1%"),
    ("KV waste", "kv_waste", ".1%"),
    ("preemptions", "preemptions", ",.0f"),
    ("scheduler p50, ms", "scheduler_ms.p50", ",.3f"),
    ("scheduler p99, ms", "scheduler_ms.p99", ",.3f"),
    ("answers with a known text", "comparable", ",.0f"),
    ("of these exact", "exact", ",.0f"),
)
_PARTS = ("by_class", "by_tenant", "by_group")
_PART_ROWS = (
    ("TTFT p50", "ttft_ms.p50", ",.1f"),
    ("TTFT p99", "ttft_ms.p99", ",.1f"),
    ("TBT p50", "tbt_ms.p50", ",.1f"),
    ("TBT p99", "tbt_ms.p99", ",.1f"),
    ("E2E p50", "e2e_ms.p50", ",.1f"),
    ("E2E p99", "e2e_ms.p99", ",.1f"),
)


def show(result: Result, console: Console) -> None:
    """Print conditions, figures, and the command to repeat the measurement."""
    console.print("\n".join(_setting(result)), soft_wrap=True)
    measured = result.measured
    for variant in measured:
        console.print(_table(variant, measured[0]))
        if any(variant.figures.get(part) for part in _PARTS):
            console.print(_parts(variant))
    if len(measured) > 2:
        console.print(_overview(result))
    sustained = result.to_json()["sustained"]
    for name, load in sustained["load"].items():
        reached = "not at any load measured" if load is None else f"up to a load of {load:.3g}"
        ratio = sustained["ratio_to_first"].get(name)
        compared = "" if ratio is None else f", {ratio:.2f} x the first"
        console.print(f"{name}: median E2E per token within {result.latency_limit_ms:g} ms {reached}{compared}")


def _setting(result: Result) -> list[str]:
    host = result.machine
    memory = f"{host['memory_bytes'] / 2**30:.1f} GiB"
    return [
        f"machine: {host['cores']} cores, {host['cpu_model']}, {memory}, {host['system']}",
        "versions: " + ", ".join(f"{name} {version}" for name, version in result.versions.items()),
        "model: " + ", ".join(f"{name} {_plain(value)}" for name, value in _told(result.model)),
        "workload: " + ", ".join(f"{name} {_plain(value)}" for name, value in _told(result.workload)),
        f"command: {result.command}",
    ]


def _table(variant: Variant, first: Variant) -> Table:
    """Return a variant's medians with its lowest and highest run, and their ratios to the first variant."""
    figures, spread, compared = variant.figures, extremes(variant.runs), ratios(first.figures, variant.figures)
    runs = "1 run" if len(variant.runs) == 1 else f"median of {len(variant.runs)} runs"
    title = f"{variant.name}: {runs}, {figures['requests']:g} requests, {figures['complete']:g} complete"
    table = Table(box=box.SIMPLE, pad_edge=False, title=title, title_justify="left", min_width=len(title))
    table.add_column("", min_width=22)
    headings = ["median", "lowest … highest", *([] if variant is first else [f"to {first.name}"])]
    for heading in headings:
        table.add_column(heading, justify="right")
    for label, path, form in _ROWS:
        value = _at(figures, path)
        if value is None:
            continue
        low, high = _at(spread, path)
        ratio = _at(compared, path)
        cells = [format(value, form), f"{low:{form}} … {high:{form}}", *([] if ratio is None else [f"{ratio:.3f} x"])]
        table.add_row(label, *(cells[: len(headings)]))
    return table


def _parts(variant: Variant) -> Table:
    """Return latencies by class, tenant and group, in milliseconds."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("of these, ms", "requests", *(label for label, *_ in _PART_ROWS)):
        table.add_column(heading, justify="right")
    for part in _PARTS:
        for name, figures in (variant.figures.get(part) or {}).items():
            cells = [_shown(_at(figures, path), form) for _, path, form in _PART_ROWS]
            table.add_row(name, f"{figures['complete']:g}", *cells)
    return table


def _overview(result: Result) -> Table:
    """Return a table with one line per variant."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    chosen = ("requests_per_s", "output_tokens_per_s", "ttft_ms.mean", "tbt_ms.p99", "normalized_latency_ms.p50")
    rows = [row for row in _ROWS if row[1] in chosen]
    table.add_column("", no_wrap=True)
    for label, *_ in rows:
        table.add_column(label, justify="right")
    for variant in result.measured:
        table.add_row(variant.name, *(_shown(_at(variant.figures, path), form) for _, path, form in rows))
    return table


def _at(figures: Mapping[str, Any], path: str) -> Any:
    value: Any = figures
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _told(facts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in facts.items() if value is not None]


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
