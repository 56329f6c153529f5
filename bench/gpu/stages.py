"""The parts of the measurement, each of which fills one section of the report."""

import gc
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch
from transformers import PreTrainedModel

from orcastream.bench.gpu.ceilings import Ceilings, measure_ceilings
from orcastream.bench.gpu.check import cases, check
from orcastream.bench.gpu.iterations import measure_decodes, measure_prefill, outputs_of_decodes
from orcastream.bench.gpu.kernels import BATCHES, CONTEXTS, PREFILLS, measure_decode
from orcastream.bench.gpu.kernels import measure_prefill as measure_prefill_kernel
from orcastream.bench.gpu.models import random_model
from orcastream.bench.gpu.report import Report
from orcastream.bench.gpu.runs import WORKLOADS_COMPARED, draw_requests, run_engine, run_transformers
from orcastream.bench.workloads import SampleRequest
from orcastream.engine import EngineConfig
from orcastream.engine.attention import AttentionBackend
from orcastream.engine.kv.layout import LayerShape
from orcastream.engine.model.runner import cache_dtype_name
from orcastream.schemas.errors import InvalidRequest

_LAYER = LayerShape(32, 8, 128, 128)
"""One layer of the 8B shape."""

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
        *,
        tiny: bool,
    ) -> None:
        self._backend, self._device, self._seed = backend, device, seed
        self._shapes, self._repeats, self._tiny = shapes, repeats, tiny
        self._ceilings: Ceilings | None = None

    def run(self, stages: Sequence[str], report: Report) -> bool:
        """Those stages; False, and nothing after it, where a kernel computes something else than the reference."""
        parts = {
            "check": self.check,
            "kernels": self.kernels,
            "iterations": self.iterations,
            "workloads": self.workloads,
        }
        return all(part(report) for name, part in parts.items() if name in stages)

    def check(self, report: Report) -> bool:
        """Kernels against the reference."""
        right = True
        for found in check(self._backend, cases(self._tiny), self._device, self._seed, self._tiny):
            right &= found.right
            report.add("kernels against the reference", case=found.case.name, error=found.error, right=found.right)
        return right

    def kernels(self, report: Report) -> bool:
        """Decode and prefill of one layer."""
        ceilings = self._measured(report)
        for cache_dtype in (torch.bfloat16, torch.float8_e4m3fn):
            given = (self._backend, _LAYER, cache_dtype, ceilings, self._device)
            for found in (*measure_decode(*given), *measure_prefill_kernel(*given)):
                report.add(
                    "attention of one layer (32 heads, 8 key heads of 128)",
                    what=found.what,
                    cache=cache_dtype_name(cache_dtype),
                    us=found.seconds * 1e6,
                    GB_per_s=found.bytes / found.seconds / 1e9,
                    TFLOP_per_s=found.flop / found.seconds / 1e12,
                    of_ceiling=found.share,
                )
        return True

    def iterations(self, report: Report) -> bool:
        """Whole models: decode and prefill, and the gap between decode iterations."""
        ceilings = self._measured(report)
        for shape in self._shapes:
            self._iterations_of(shape, ceilings, report)
        return True

    def _iterations_of(self, shape: str, ceilings: Ceilings, report: Report) -> None:
        model = random_model(shape, self._device)
        measured = [
            partial(
                measure_decodes, model, self._config(model, batch, _longest(batch, context)), ceilings, batch, context
            )
            for batch in BATCHES
            for context in CONTEXTS
        ]
        measured += [
            partial(measure_prefill, model, self._config(model, 1, length + 1), ceilings, length) for length in PREFILLS
        ]
        for measure in measured:
            try:
                found = measure()
            except (ValueError, InvalidRequest, torch.OutOfMemoryError) as error:
                report.add("left out", shape=shape, what=str(measure.args[3:]), reason=str(error).splitlines()[0])
                continue
            finally:
                gc.collect()
                torch.cuda.empty_cache()
            report.add(
                "iterations of whole models",
                shape=shape,
                what=found.what,
                ms=found.seconds * 1e3,
                of_ceiling=found.share,
                gap=found.gap,
            )

    def workloads(self, report: Report) -> bool:
        """The engine beside transformers' continuous batching, in turn."""
        for shape in self._shapes:
            model = random_model(shape, self._device)
            for workload in WORKLOADS_COMPARED:
                requests = draw_requests(workload, model.config.vocab_size, self._seed, requests=_REQUESTS)
                self._compare(model, shape, workload, requests, report)
        return True

    def _compare(
        self, model: PreTrainedModel, shape: str, workload: str, requests: Sequence[SampleRequest], report: Report
    ) -> None:
        systems: dict[str, Callable[[], float]] = {
            "orcastream": partial(run_engine, model, self._config(model, _REQUESTS, None), requests),
            "transformers-cb": partial(run_transformers, model, requests, {}),
        }
        rates: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(self._repeats):
            for name, run in systems.items():
                rates[name].append(run())
        for name, found in rates.items():
            report.add(
                "output tokens/s, all requests at once",
                system=name,
                shape=shape,
                workload=workload,
                median=statistics.median(found),
                output_tokens_per_s=[round(rate, 1) for rate in found],
            )

    def _measured(self, report: Report) -> Ceilings:
        if self._ceilings is None:
            self._ceilings = measure_ceilings(self._device)
            report.add(
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
