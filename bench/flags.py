"""Flags shared by several benchmarks, and the parsing of their values."""

import argparse
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn, TypeVar

from orcastream.bench.figures.outcome import Objectives
from orcastream.bench.workloads import WORKLOADS, Draw, SampleRequest
from orcastream.cli.errors import UserError

N = TypeVar("N", int, float)


class Parser(argparse.ArgumentParser):
    """argparse with errors raised as UserError: one line, as for all commands."""

    def __init__(self, name: str, description: str | None) -> None:
        super().__init__(
            prog=f"orcastream bench {name}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Always UserError."""
        raise UserError(message)


def above_zero(text: str) -> float:
    """argparse type: a number that is more than 0 and finite."""
    return checked(text, float, lambda value: 0 < value < float("inf"), "more than 0 and finite")


def zero_or_more(text: str) -> float:
    """argparse type: a number that is at least 0 and finite."""
    return checked(text, float, lambda value: 0 <= value < float("inf"), "0 or more and finite")


def at_least(least: int) -> Callable[[str], int]:
    """argparse type: a whole number of at least `least`."""
    return lambda text: checked(text, int, lambda value: value >= least, f"a whole number of at least {least}")


def add_workload_flags(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Add flags for the kind, number, lengths and arrivals of requests."""
    group = parser.add_argument_group("workload", "`orcastream bench workloads` describes them")
    group.add_argument("--workload", choices=WORKLOADS, default=default, help="kind of requests (%(default)s)")
    group.add_argument("--requests", type=at_least(1), help="number of requests (default: the workload's)")
    group.add_argument("--rate", type=above_zero, help="requests per second (default: the workload's arrivals)")
    group.add_argument("--burstiness", type=above_zero, default=1.0, help="below 1: in bursts (%(default)g: Poisson)")
    group.add_argument("--length-scale", type=above_zero, default=1.0, help="multiplies all lengths (%(default)g)")
    group.add_argument("--only-tenant", metavar="NAME", help="leave out the requests of all other tenants")
    group.add_argument("--seed", type=int, default=0, help="seed of prompts, lengths and arrivals (%(default)s)")


def add_result_flags(parser: argparse.ArgumentParser, *, repeats: int) -> None:
    """Add flags for repeats, objectives and output files."""
    group = parser.add_argument_group("measuring")
    group.add_argument("--repeats", type=at_least(1), default=repeats, help="runs of each variant (%(default)s)")
    group.add_argument("--warmup", type=at_least(0), default=2, help="short requests before a run (%(default)s)")
    group.add_argument("--ttft-slo-ms", type=above_zero, metavar="MS", help="goodput: maximum time to first token")
    group.add_argument("--tbt-slo-ms", type=above_zero, metavar="MS", help="goodput: maximum time between tokens, p99")
    group.add_argument(
        "--latency-limit-ms",
        type=above_zero,
        metavar="MS",
        help="sweep: where E2E per token reaches this",
    )
    group.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, times in milliseconds")
    group.add_argument("--plot", type=Path, metavar="FILE", help="plot them there: .svg, .png, .pdf (needs matplotlib)")


def check_outputs(options: argparse.Namespace, pictures: Sequence[str] = (".svg", ".png", ".pdf")) -> None:
    """Raise UserError, before anything is measured, if a requested file cannot be written."""
    json_path: Path | None = options.json
    plot_path: Path | None = getattr(options, "plot", None)
    if plot_path is not None and plot_path.suffix not in pictures:
        raise UserError(f"--plot: got {str(plot_path)!r}, allowed: a name that ends with {', '.join(pictures)}")
    if json_path is not None and json_path == plot_path:
        raise UserError(f"--json, --plot: got {str(json_path)!r} twice, allowed: two files")
    for flag, path in (("--json", json_path), ("--plot", plot_path)):
        if path is not None:
            _check_writable(flag, path)
    if plot_path is not None and importlib.util.find_spec("matplotlib") is None:
        raise UserError("--plot: the package matplotlib is not installed: pip install 'orcastream[bench]'")


def _check_writable(flag: str, path: Path) -> None:
    """Raise UserError if the file cannot be written; open and create nothing under its name."""
    try:
        if not path.exists():
            TemporaryFile(dir=path.resolve().parent).close()
        elif path.is_dir() or not os.access(path, os.W_OK):
            raise UserError(f"{flag}: got {str(path)!r}, allowed: a file that can be written")
    except OSError as error:
        raise UserError(f"{flag}: got {str(path)!r}, allowed: a file that can be written ({error.strerror})") from None


def check_limit(options: argparse.Namespace) -> None:
    """Raise UserError for a sweep's limit without a sweep."""
    if options.latency_limit_ms is not None and not options.sweep:
        raise UserError(f"--latency-limit-ms: got {options.latency_limit_ms:g}, allowed: with --sweep")


def objectives(options: argparse.Namespace) -> Objectives:
    """Return the given service-level objectives."""
    ttft_ms, tbt_ms = options.ttft_slo_ms, options.tbt_slo_ms
    return Objectives(None if ttft_ms is None else ttft_ms / 1000, None if tbt_ms is None else tbt_ms / 1000)


def draw_workload(options: argparse.Namespace, draw: Draw) -> list[SampleRequest]:
    """Return the requests of the chosen workload. Raises UserError if --only-tenant leaves none."""
    requests = WORKLOADS[options.workload].build(draw)
    if options.only_tenant is None:
        return requests
    if any(request.follows is not None for request in requests):
        raise UserError(
            f"--only-tenant: got workload {options.workload}, allowed: one whose requests do not follow others"
        )
    tenants = sorted({request.tenant for request in requests})
    kept = [request for request in requests if request.tenant == options.only_tenant]
    if not kept:
        raise UserError(f"--only-tenant: got {options.only_tenant!r}, allowed: {', '.join(tenants)}")
    return kept


def check_arrivals(workload: str, rate: float | None, burstiness: float = 1.0) -> None:
    """Raise UserError if a rate or a burstiness would have no effect."""

    def times_s(rate: float | None, burstiness: float) -> list[float]:
        found = WORKLOADS[workload]
        draw = Draw(vocab_size=2, requests=found.requests, rate=rate, burstiness=burstiness, length_scale=1e-9)
        return [request.arrival_s for request in found.build(draw)]

    if rate is not None and times_s(rate, 1.0) == times_s(None, 1.0):
        raise UserError(
            f"--rate: got {rate:g} for {workload}, allowed: none, because the workload defines its arrivals"
        )
    if burstiness != 1.0 and times_s(rate, burstiness) == times_s(rate, 1.0):
        raise UserError(f"--burstiness: got {burstiness:g} for {workload}, allowed: with --rate")


def numbers(flag: str, text: str | None) -> list[float]:
    """Parse `0.5,1,2` as numbers above 0. Raises UserError."""
    try:
        found = [] if text is None else [above_zero(part) for part in text.split(",")]
    except argparse.ArgumentTypeError:
        raise UserError(f"{flag}: got {text!r}, allowed: numbers above 0, separated by commas") from None
    if len({f"{number:g}" for number in found}) < len(found):
        raise UserError(f"{flag}: got {text!r}, allowed: each number once")
    return found


def names(text: str | None) -> Sequence[str]:
    """`a,b` as names."""
    return [] if text is None else [name.strip() for name in text.split(",") if name.strip()]


def checked(text: str, kind: Callable[[str], N], fits: Callable[[N], bool], allowed: str) -> N:
    """Return the number that `text` means if it `fits`. Raises ArgumentTypeError, which says what is `allowed`."""
    try:
        value = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text}, allowed: {allowed}") from None
    if not fits(value):
        raise argparse.ArgumentTypeError(f"got {text}, allowed: {allowed}")
    return value
