"""The content of `orcastream top` as plain data."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orcastream.broker.overview import Overview
from orcastream.broker.presence import WorkerInfo
from orcastream.cli.top.rates import Rates, number
from orcastream.schemas.keys import CLASSES


def snapshot(overview: Overview, rates: Mapping[str, Rates], model: str) -> dict[str, Any]:
    """Return one object: the queue by class, the workers, and their totals; times in seconds, rates per second."""
    workers = [_worker(worker, rates.get(worker.name, Rates())) for worker in overview.workers]
    return {
        "model": model,
        "time_ms": overview.time_ms,
        "queue": [_class(overview, name) for name in CLASSES],
        "workers": workers,
        "dead_letters": overview.dead_letters,
        "rates": {name: _sum([worker["rates"][name] for worker in workers]) for name in asdict(Rates())},
    }


def _class(overview: Overview, name: str) -> dict[str, Any]:
    queue = overview.queue
    return {
        "class": name,
        "waiting": max(0, queue.lengths[name] - queue.claimed[name]),
        "claimed": queue.claimed[name],
        "oldest_s": queue.ages_s[name],
    }


def _worker(worker: WorkerInfo, rates: Rates) -> dict[str, Any]:
    counts = ("running", "capacity", "iterations", "blocks_used", "blocks_total", "preemptions")
    return {
        "worker": worker.name,
        "state": worker.info.get("state", "serving") if worker.alive else "gone",
        "holds": worker.pending,
        **{name: _whole(worker.info.get(name, "")) for name in counts},
        "rates": asdict(rates),
    }


def _whole(text: str) -> int | None:
    value = number(text)
    return int(value) if value is not None and abs(value) < 2**63 else None


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
