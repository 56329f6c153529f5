"""The load on a gateway: open loop at a rate, closed loop with a number of clients, or the workload's arrivals."""

import argparse
from dataclasses import asdict, dataclass
from typing import Any

from orcastream.bench.flags import check_arrivals, numbers
from orcastream.cli.errors import UserError

_QUESTIONS_S = 60.0
_CLIENTS = 8
_SWEEPS = ("rate", "concurrency")


@dataclass(frozen=True)
class Load:
    """`rate` in requests per second, `concurrency` in concurrent requests; `duration_s` infinite: to the last request.

    `swept` is the value that a sweep varies, None without one.
    """

    name: str
    rate: float | None
    concurrency: int | None
    is_closed: bool
    duration_s: float
    swept: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without an infinite duration."""
        endless = self.duration_s == float("inf")
        return {**asdict(self), "duration_s": None if endless else self.duration_s}


def read_loads(options: argparse.Namespace) -> list[Load]:
    """Return the loads to measure, in order. Questions are unlimited, so they run for a minute. Raises UserError."""
    loads = _loads(options)
    if options.burstiness != 1.0 and any(load.is_closed for load in loads):
        raise UserError(f"--burstiness: got {options.burstiness:g}, allowed: for requests that arrive, not for clients")
    for load in loads:
        if not (load.is_closed or options.questions or options.prompts):
            check_arrivals(options.workload, load.rate, options.burstiness)
    return loads


def _loads(options: argparse.Namespace) -> list[Load]:
    asks_text = bool(options.questions or options.prompts)
    duration_s = options.duration or (_QUESTIONS_S if asks_text and not options.requests else float("inf"))
    if options.sweep:
        return _swept(options.sweep, duration_s)
    concurrency = options.concurrency or (_CLIENTS if asks_text and not options.rate else None)
    is_closed = concurrency is not None and options.rate is None
    if options.rate is not None:
        name = f"rate={options.rate:g}"
    else:
        name = f"concurrency={concurrency}" if is_closed else "arrivals of the workload"
    return [Load(name, options.rate, concurrency, is_closed, duration_s)]


def _swept(text: str, duration_s: float) -> list[Load]:
    kind, equals, values = text.partition("=")
    if not equals or kind not in _SWEEPS:
        raise UserError(f"--sweep: got {text!r}, allowed: rate=R,R... or concurrency=C,C...")
    found = numbers("--sweep", values)
    if kind == "rate":
        return [Load(f"rate={rate:g}", rate, None, False, duration_s, rate) for rate in found]
    if any(clients != int(clients) for clients in found):
        raise UserError(f"--sweep: got {text!r}, allowed: whole numbers of clients")
    return [Load(f"concurrency={clients:g}", None, int(clients), True, duration_s, clients) for clients in found]
