"""Measure the engine alone, without queue and HTTP: compare policies and settings.

The model is loaded once, and once more for variants that need other weights or modules in memory (`weight_dtype`,
`model_passes`, `self_check`); every run has its own engine with an empty cache. The variants alternate, repeat by
repeat, so that other activity of the machine affects all of them alike. Ratios are those of medians to the first
variant.

  orcastream bench offline --model DIR --workload short_long_mix --policy static,fcfs --max-batch-size 2
  orcastream bench offline --model DIR --workload shared_prefix --compare prefix_cache=false --json figures.json
  orcastream bench offline --model DIR --workload equal_size --max-batch-size 16 --with-schema
  orcastream bench offline --model DIR --workload orca_trace --policy static,fcfs --sweep 0.1,0.2,0.4 --plot curve.svg
"""

import argparse
from collections.abc import Sequence

from rich.console import Console

from orcastream.bench.figures.machine import command_line
from orcastream.bench.figures.tables import show
from orcastream.bench.flags import (
    Parser,
    add_result_flags,
    add_workload_flags,
    at_least,
    check_arrivals,
    check_limit,
    check_outputs,
    names,
    numbers,
    zero_or_more,
)
from orcastream.bench.offline.flags import add_engine_flags, engine_settings
from orcastream.bench.offline.variants import variants
from orcastream.cli.errors import UserError
from orcastream.engine import UnsupportedModel
from orcastream.engine.schedule.policies import POLICIES
from orcastream.schemas.errors import InvalidRequest


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write the requested files; return 130 if an interrupt ended the run early."""
    options = _parse(arguments)
    check_outputs(options)
    compared = variants(engine_settings(options) | {"model": options.model}, names(options.policy), options.compare)
    from orcastream.bench.offline.bench import OfflineBench  # it loads torch, for which --help need not wait

    try:
        bench = OfflineBench(options, compared)
        complete = bench.run()
    except (InvalidRequest, UnsupportedModel, ValueError, OSError) as error:
        raise UserError(str(error)) from None
    result = bench.result(command_line("offline", arguments))
    show(result, Console(width=110, highlight=False))
    if options.json:
        result.save(options.json)
    if options.plot and result.measured:
        from orcastream.bench.figures.plot import draw

        draw(result, options.plot)
    return 0 if complete else 130


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("offline", __doc__)
    parser.add_argument("--model", required=True, help="directory or hub id; see `bench make-model`")
    policies = f"scheduling policies to compare, of {', '.join(sorted(POLICIES))} (default: the engine's)"
    parser.add_argument("--policy", metavar="P[,P...]", help=policies)
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="SETTING=VALUE",
        help="an additional variant with this engine setting, or several separated by commas; repeatable",
    )
    parser.add_argument(
        "--with-schema",
        action="store_true",
        help="also measure each variant with answers that follow a JSON schema",
    )
    parser.add_argument("--sweep", metavar="R[,R...]", help="measure each variant at these rates [requests/s]")
    parser.add_argument("--threads", type=at_least(1), help="torch's threads (torch's default)")
    add_workload_flags(parser, "equal_size")
    parser.add_argument("--time-scale", type=zero_or_more, default=1.0, help="multiplies arrival times; 0: all at once")
    add_result_flags(parser, repeats=3)
    add_engine_flags(parser)
    options = parser.parse_args(list(arguments))
    if options.sweep and options.rate:
        parser.error("--sweep: got a rate as well, allowed: without --rate")
    check_limit(options)
    for rate in numbers("--sweep", options.sweep) or [options.rate]:
        check_arrivals(options.workload, rate, options.burstiness)
    return options
