"""Variants of the engine that alternate on one loaded model."""

import argparse
import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from orcastream.bench.figures.machine import machine
from orcastream.bench.figures.measures import measure
from orcastream.bench.figures.outcome import Objectives
from orcastream.bench.figures.progress import RunBars
from orcastream.bench.figures.result import Result, Variant
from orcastream.bench.flags import draw_workload, numbers, objectives
from orcastream.bench.offline.drive import Drive
from orcastream.bench.offline.model_card import model_card
from orcastream.bench.offline.schema import endless_matcher
from orcastream.bench.offline.variants import EngineVariant
from orcastream.bench.workloads import WORKLOADS, Draw, SampleRequest, token_ids
from orcastream.engine import EngineConfig, OrcaEngine

_WARM_UP_PROMPT, _WARM_UP_OUTPUT = 64, 4


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
