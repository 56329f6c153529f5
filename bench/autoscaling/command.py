"""Demonstrate autoscaling on this machine.

Queue, gateway and worker processes are real; only KEDA and the HPA are simulated, by bench/autoscaling/keda.py with the
settings of k8s/components/autoscaling and their times divided by --faster. A load rises and falls; workers are started,
and drained by SIGTERM, down to none; then one request wakes the service up again. Exit status: 0 if every request got
exactly the expected answer and the service scaled to zero twice, else 1.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from orcastream.bench.arrivals import RateProfile
from orcastream.bench.autoscaling.keda import Autoscaler, Policy, ScaledObject
from orcastream.bench.autoscaling.performance import Performance
from orcastream.bench.autoscaling.series import Series
from orcastream.bench.figures.spread import Spread
from orcastream.bench.flags import Parser, above_zero, at_least, check_outputs, zero_or_more
from orcastream.bench.serve.gateway import served_model
from orcastream.bench.serve.questions import DEMO_MODEL
from orcastream.bench.serve.report import Report
from orcastream.bench.site import Site

DEPLOYED = ScaledObject(
    target=24,
    max_replicas=8,
    polling_interval_s=5,
    cooldown_period_s=300,
    scale_down_window_s=300,
    scale_up=(Policy("Percent", 100, 30), Policy("Pods", 2, 30)),
    scale_down=(Policy("Pods", 1, 90),),
)
"""The settings of k8s/components/autoscaling; a test compares the two."""
_DEPLOYED_BATCH_SIZE = 32
"""The workers' max_batch_size in that component."""
PROFILE = "0:0.5,15:0.5,45:7,75:7,100:0.5,170:0.5"
_LAST_LINES = 40


def main(arguments: Sequence[str]) -> int:
    """Run, plot and judge; return the exit status."""
    options = _parse(arguments)
    check_outputs(options, pictures=(".svg",))
    spec = for_batches_of(options.max_batch_size, replace(DEPLOYED, max_replicas=options.max_replicas))
    spec = spec.faster(options.faster)
    series = Series(_settings(options, spec))
    lines: deque[str] = deque(maxlen=_LAST_LINES)
    report = asyncio.run(_perform(options, spec, series, lines))
    console = Console(width=100, highlight=False)
    console.print(report.table())
    console.print(report.summary())
    console.print("\n".join(story(series, report)))
    if options.json:
        series.save(options.json)
    if options.plot:
        from orcastream.bench.autoscaling.picture import draw

        draw(series, options.plot)
    complaints = [*report.failed(require_exact=True), *shortcomings(series)]
    for complaint in complaints:
        print(f"orcastream bench autoscale: {complaint}", file=sys.stderr)
    if complaints:
        print("\n".join(["The processes' last lines:", *lines]), file=sys.stderr)
    return 1 if complaints else 0


def for_batches_of(max_batch_size: int, spec: ScaledObject) -> ScaledObject:
    """Return `spec` with the same share of a smaller max_batch_size as the target of requests per worker."""
    return replace(spec, target=max(1, round(spec.target * max_batch_size / _DEPLOYED_BATCH_SIZE)))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("autoscale", __doc__)
    parser.add_argument("--profile", type=_profile, default=PROFILE, help="SECONDS:RATE,... (%(default)s)")
    parser.add_argument(
        "--faster", type=above_zero, default=10.0, help="divides the times of KEDA and HPA (%(default)g)"
    )
    parser.add_argument("--max-replicas", type=at_least(1), default=3, help="maximum number of workers (%(default)s)")
    parser.add_argument(
        "--max-batch-size", type=at_least(1), default=4, help="maximum requests in an iteration (%(default)s)"
    )
    parser.add_argument(
        "--drain-grace", type=zero_or_more, default=2.0, help="the workers' drain_grace_s (%(default)g)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of arrivals and questions (%(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the run there, as SVG (needs matplotlib)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the recorded data there")
    return parser.parse_args(list(arguments))


def _profile(text: str) -> RateProfile:
    """argparse type, so that the reason is shown."""
    try:
        return RateProfile.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("profile: ")) from None


def _settings(options: argparse.Namespace, spec: ScaledObject) -> dict[str, object]:
    own = {name: getattr(options, name) for name in ("faster", "max_batch_size", "drain_grace", "seed")}
    return {**asdict(spec), **own, "profile": str(options.profile)}


async def _perform(options: argparse.Namespace, spec: ScaledObject, series: Series, lines: deque[str]) -> Report:
    with tempfile.TemporaryDirectory(prefix="orcastream-bench-") as directory:
        site = Site(
            Path(directory),
            DEMO_MODEL,
            lambda name, line: lines.append(f"{name} | {line}"),
            worker={"max_batch_size": options.max_batch_size},
            gateway={"require_worker": "false"},
            drain_grace_s=options.drain_grace,
        )
        try:
            await site.start()
            await served_model(site.url)
            performance = Performance(site, Autoscaler(spec), series)
            await performance.perform(options.profile, options.seed)
        finally:
            await site.stop()
    return performance.report()


def story(series: Series, report: Report) -> list[str]:
    """Return a summary of the run in a few lines."""
    marks = series.marks
    lines = [
        f"workers: {max(series.column('ready')):g} ready at most; "
        f"longest queue: {max(series.column('queue')):g} requests",
        f"{report.moved} answers were handed from one worker to another mid-stream",
    ]
    busy = [request for request in series.requests if request.arrived_s < marks["last answer"]]
    if ttft := Spread.of(request.ttft_s for request in busy if request.ttft_s is not None):
        lines.append(f"TTFT under the load: p50 {ttft.p50:.2f} s, p95 {ttft.p95:.2f} s, highest {ttft.highest:.2f} s")
    if "zero" in marks:
        lines.append(f"zero workers {marks['zero'] - marks['last answer']:.1f} s after the last answer")
    if "one request" in marks and series.requests[-1].ttft_s is not None:
        lines.append(
            f"one request woke the service from zero: its first token came after {series.requests[-1].ttft_s:.2f} s"
        )
    return lines


def shortcomings(series: Series) -> list[str]:
    """Return what the run should have shown and did not."""
    complaints = [f"the run did not reach: {name}" for name in ("zero", "zero again") if name not in series.marks]
    if max(series.column("ready"), default=0) < 2:
        complaints.append("no second worker was ever ready")
    return complaints
