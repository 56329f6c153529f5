"""The stages of the measurement, each of which fills one section of the report."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch
from transformers import PreTrainedModel

from orcastream.bench.gpu.attempt import Attempts
from orcastream.bench.gpu.ceilings import Ceilings, measure_ceilings
from orcastream.bench.gpu.check import cases, check
from orcastream.bench.gpu.draws import BATCHES as BATCHES_DRAWN
from orcastream.bench.gpu.draws import FILTERS, VOCAB, check_draws, measure_draws
from orcastream.bench.gpu.iterations import measure_decodes, measure_prefill, outputs_of_decodes
from orcastream.bench.gpu.kernels import BATCHES, CONTEXTS, PREFILLS, decodes, prefills
from orcastream.bench.gpu.kernels import measure as measure_kernel
from orcastream.bench.gpu.models import random_model
from orcastream.bench.gpu.report import Report
from orcastream.bench.gpu.runs import draw_requests, run_engine, run_transformers
from orcastream.bench.workloads import SampleRequest
from orcastream.engine import EngineConfig
from orcastream.engine.attention import AttentionBackend
from orcastream.engine.kv.layout import LayerShape
from orcastream.engine.model.runner import cache_dtype_name

_LAYER = LayerShape(32, 8, 128, 128)
"""A layer of the 8B shape."""

_LARGEST_PREFILL = PREFILLS[-1]
_REQUESTS = 64


class Bench:
    """One device and one backend. `tiny` is for checks in the interpreter."""

    def __init__(
        self,
        backend: AttentionBackend,
        device: torch.device,
        seed: int,
        shapes: Sequence[str],
        repeats: int,
        report: Report,
        *,
        workloads: Sequence[str],
        tiny: bool,
    ) -> None:
        self._backend, self._device, self._seed = backend, device, seed
        self._shapes, self._workloads, self._repeats, self._tiny = shapes, workloads, repeats, tiny
        self._ceilings: Ceilings | None = None
        self._right = True
        self._report = report
        self._attempts = Attempts(report, device)

    def run(self, stages: Sequence[str]) -> bool:
        """Run the stages, each regardless of the previous ones' results; return False if a kernel deviates from the
        reference, or a measurement failed that was not too large."""
        parts = {
            "check": self.check,
            "kernels": self.kernels,
            "iterations": self.iterations,
            "workloads": self.workloads,
        }
        for name, part in parts.items():
            if name in stages:
                self._attempts.attempt(name, part)
        return self._right and not self._attempts.failed

    def check(self) -> None:
        """Check kernels against the reference."""
        for number, case in enumerate(cases(self._tiny)):
            measure = partial(check, self._backend, case, self._device, self._seed + number, self._tiny)
            found = self._attempts.attempt(case.name, measure)
            if found is not None:
                self._checked(case.name, found.error, found.right)
        for dtype in (torch.bfloat16, torch.float32):
            draws = self._attempts.attempt("draws", partial(check_draws, dtype, self._device, self._seed, self._tiny))
            if draws is not None:
                self._checked(draws.name, draws.error, draws.right)

    def _checked(self, name: str, error: float, right: bool) -> None:
        self._right &= right
        self._report.add("kernels against the reference", case=name, error=error, right=right)

    def kernels(self) -> None:
        """Measure decode and prefill of one layer, and random draws."""
        ceilings = self._measured()
        for cache_dtype in (torch.bfloat16, torch.float8_e4m3fn):
            cache = cache_dtype_name(cache_dtype)
            for load in (*decodes(), *prefills()):
                measure = partial(measure_kernel, self._backend, _LAYER, cache_dtype, ceilings, self._device, load)
                found = self._attempts.attempt(f"attention of one layer, cache {cache}: {load.what}", measure)
                if found is not None:
                    self._report.add(
                        "attention of one layer (32 heads, 8 key heads of 128)",
                        what=found.what,
                        cache=cache,
                        us=found.seconds * 1e6,
                        GB_per_s=found.bytes / found.seconds / 1e9,
                        TFLOP_per_s=found.flop / found.seconds / 1e12,
                        of_ceiling=found.share,
                    )

        for filters, params in FILTERS.items():
            for batch in BATCHES_DRAWN:
                draw = partial(measure_draws, params, batch, ceilings, self._device)
                draws = self._attempts.attempt(f"draws with {filters}, batch {batch}", draw)
                if draws is not None:
                    section = f"random draws from {VOCAB:,} logits"
                    us = draws.seconds * 1e6
                    self._report.add(section, filters=filters, batch=batch, us=us, of_ceiling=draws.share)

    def iterations(self) -> None:
        """Measure whole models: decode, prefill, and the gap between decode iterations."""
        ceilings = self._measured()
        for shape in self._shapes:
            self._attempts.attempt(shape, partial(self._iterations_of, shape, ceilings))

    def _iterations_of(self, shape: str, ceilings: Ceilings) -> None:
        model = random_model(shape, self._device)
        measured = {
            f"decode iteration, batch {batch}, context {context}": partial(
                measure_decodes, model, self._config(model, batch, _longest(batch, context)), ceilings, batch, context
            )
            for batch in BATCHES
            for context in CONTEXTS
        }
        for length in PREFILLS:
            config = self._config(model, 1, length + 1)
            measured[f"prefill iteration, {length}"] = partial(measure_prefill, model, config, ceilings, length)
        for what, measure in measured.items():
            found = self._attempts.attempt(f"{shape}: {what}", measure)
            if found is not None:
                self._report.add(
                    "iterations of whole models",
                    shape=shape,
                    what=what,
                    ms=found.seconds * 1e3,
                    of_ceiling=found.share,
                    gap=found.gap,
                )

    def workloads(self) -> None:
        """Measure the engine and transformers' continuous batching alternately."""
        for shape in self._shapes:
            self._attempts.attempt(shape, partial(self._workloads_of, shape))

    def _workloads_of(self, shape: str) -> None:
        model = random_model(shape, self._device)
        for workload in self._workloads:
            requests = draw_requests(workload, model.config.vocab_size, self._seed, requests=_REQUESTS)
            self._compare(model, shape, workload, requests)

    def _compare(self, model: PreTrainedModel, shape: str, workload: str, requests: Sequence[SampleRequest]) -> None:
        systems: dict[str, Callable[[], float]] = {
            "orcastream": partial(run_engine, model, self._config(model, _REQUESTS, None), requests),
            "transformers-cb": partial(run_transformers, model, requests, {}),
        }
        rates: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(self._repeats):
            for name in list(systems):
                rate = self._attempts.attempt(f"{shape}: {workload}, {name}", systems[name])
                if rate is None:
                    del systems[name]  # it would fail again
                else:
                    rates[name].append(rate)
        for name, found in rates.items():
            if found:
                self._report.add(
                    "output tokens/s, all requests at once",
                    system=name,
                    shape=shape,
                    workload=workload,
                    median=statistics.median(found),
                    output_tokens_per_s=[round(rate, 1) for rate in found],
                )

    def _measured(self) -> Ceilings:
        if self._ceilings is None:
            self._ceilings = measure_ceilings(self._device)
            self._report.add(
                "ceilings measured",
                copy_GB_per_s=self._ceilings.bytes_per_s / 1e9,
                matmul_TFLOP_per_s=self._ceilings.flop_per_s / 1e12,
            )
        return self._ceilings

    def _config(self, model: PreTrainedModel, batch_size: int, max_model_len: int | None) -> EngineConfig:
        return EngineConfig(
            model.config.model_type,
            attention_backend=self._backend.name,
            max_batch_size=batch_size,
            max_num_batched_tokens=_LARGEST_PREFILL,
            max_model_len=max_model_len,
            prefix_cache=False,
            self_check=False,
        )


def _longest(batch_size: int, context: int) -> int:
    return context + outputs_of_decodes(batch_size, context, _LARGEST_PREFILL)
