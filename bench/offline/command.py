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
import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from rich.console import Console
from transformers import PreTrainedModel

from orcastream.bench.figures.machine import command_line, machine
from orcastream.bench.figures.measures import measure
from orcastream.bench.figures.outcome import Objectives
from orcastream.bench.figures.progress import RunBars
from orcastream.bench.figures.result import Result, Variant
from orcastream.bench.figures.tables import show
from orcastream.bench.flags import (
    Parser,
    add_result_flags,
    add_workload_flags,
    at_least,
    check_arrivals,
    check_limit,
    check_outputs,
    draw_workload,
    names,
    numbers,
    objectives,
    zero_or_more,
)
from orcastream.bench.offline.drive import Drive
from orcastream.bench.offline.flags import add_engine_flags, engine_settings
from orcastream.bench.offline.model_card import model_card
from orcastream.bench.offline.schema import endless_matcher
from orcastream.bench.offline.variants import EngineVariant, variants
from orcastream.bench.workloads import WORKLOADS, Draw, SampleRequest, token_ids
from orcastream.cli.errors import UserError
from orcastream.engine import EngineConfig, OrcaEngine, UnsupportedModel
from orcastream.engine.schedule.policies import POLICIES
from orcastream.schemas.errors import InvalidRequest

_WARM_UP_PROMPT, _WARM_UP_OUTPUT = 64, 4


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write the requested files; return 130 if an interrupt ended the run early."""
    options = _parse(arguments)
    check_outputs(options)
    compared = variants(engine_settings(options) | {"model": options.model}, names(options.policy), options.compare)
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


class OfflineBench:
    """The loaded model, or one per way of loading it, and the variants that alternate on it."""

    def __init__(self, options: argparse.Namespace, compared: Sequence[EngineVariant]) -> None:
        self._options = options
        self._objectives = objectives(options)
        self._threads = _set_threads(options.threads)
        self._card, models = _load(compared)
        rates: list[float | None] = [*numbers("--sweep", options.sweep)] or [None]
        self._runs = [
            _Run(
                variant.config,
                models[variant.loaded_as],
                rate,
                follows,
                Variant(name, _settings(variant.config), _name(variant, None, follows), rate),
            )
            for rate in rates
            for variant in compared
            for follows in (False, True)[: 1 + options.with_schema]
            for name in [_name(variant, rate, follows)]
        ]

    def run(self) -> bool:
        """Run all repeats of all variants alternately; return False if an interrupt ended the run early."""
        repeats: int = self._options.repeats
        with RunBars(repeats * len(self._runs)) as bars, suppress(KeyboardInterrupt):
            for _ in range(repeats):
                for each in self._runs:
                    requests = self._draw(each.rate)
                    bars.begin(each.variant.name, len(requests))
                    each.variant.runs.append(self._once(each, requests, bars.update))
                    bars.end()
            return True
        return False

    def result(self, command: str) -> Result:
        """Return the result so far."""
        options = self._options
        workload = {
            "name": options.workload,
            "description": WORKLOADS[options.workload].description,
            "requests": options.requests or WORKLOADS[options.workload].requests,
            **{name: getattr(options, name) for name in ("rate", "burstiness", "length_scale", "time_scale", "seed")},
            **{name: getattr(options, name) for name in ("only_tenant", "ttft_slo_ms", "tbt_slo_ms", "warmup")},
        }
        return Result(
            command,
            self._card,
            workload,
            [each.variant for each in self._runs],
            machine={**machine(), "torch_threads": self._threads},
            latency_limit_ms=options.latency_limit_ms,
        )

    def _draw(self, rate: float | None) -> list[SampleRequest]:
        """Return the requests, the same in every repeat and for every variant."""
        options = self._options
        draw = Draw(
            vocab_size=self._card["vocab_size"],
            seed=options.seed,
            requests=options.requests or WORKLOADS[options.workload].requests,
            rate=rate or options.rate,
            burstiness=options.burstiness,
            length_scale=options.length_scale,
            time_scale=options.time_scale,
        )
        return draw_workload(options, draw)

    def _once(self, run: "_Run", requests: list[SampleRequest], tell: Callable[[int], None]) -> dict[str, Any]:
        engine = OrcaEngine(replace(run.config, self_check=False), run.model)  # it was checked at loading
        engine.settle()
        matcher = endless_matcher(engine.limits.vocab_size, engine.eos_token_ids) if run.follows_schema else None
        Drive(engine, _warm_up(requests, self._options.warmup), Objectives(), matcher).run()
        drive = Drive(engine, requests, self._objectives, matcher)
        drive.run(tell)
        figures = {
            **measure(drive.outcomes, drive.begun_s, drive.until_s, self._objectives),
            **drive.log.figures(),
        }
        del engine, drive
        gc.collect()  # free this engine's memory for the next one's cache
        return figures


class _Run(NamedTuple):
    """One measurement per repeat."""

    config: EngineConfig
    model: PreTrainedModel
    rate: float | None
    follows_schema: bool
    variant: Variant


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


def _load(compared: Sequence[EngineVariant]) -> tuple[dict[str, Any], dict[tuple[Any, ...], PreTrainedModel]]:
    """Return the first variant's model card, and the models by their way of loading, each checked when loaded."""
    card: dict[str, Any] = {}
    models: dict[tuple[Any, ...], PreTrainedModel] = {}
    for variant in compared:
        if variant.loaded_as in models:
            continue
        engine = OrcaEngine.load(variant.config)
        models[variant.loaded_as] = engine.model
        card = card or {**model_card(variant.config.model, engine.model), "operators": engine.operators.as_dict()}
        del engine
        gc.collect()  # free this one's memory for the next one's cache
    return card, models


def _set_threads(threads: int | None) -> int:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def _warm_up(requests: Sequence[SampleRequest], count: int) -> list[SampleRequest]:
    """Return short requests of the same kind with other beginnings, so that no prefix cache profits from them."""
    chosen = [request for request in requests if not request.continues][:count]
    return [
        replace(
            request,
            prompt=token_ids(request)[::-1][:_WARM_UP_PROMPT],
            max_tokens=_WARM_UP_OUTPUT,
            arrival_s=0.0,
            follows=None,
        )
        for request in chosen
    ]


def _name(variant: EngineVariant, rate: float | None, follows_schema: bool) -> str:
    name = f"{variant.name}, schema" if follows_schema else variant.name
    return name if rate is None else f"{name} at {rate:g}/s"


def _settings(config: EngineConfig) -> dict[str, Any]:
    """Return all fields as plain values."""
    return {name: value for name, value in vars(config).items() if isinstance(value, str | int | float | None)}
