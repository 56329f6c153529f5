"""Whole iterations of a model: their duration, their share of the card's limits, and the GPU's idle time."""

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from orcastream.bench.gpu.ceilings import Ceilings
from orcastream.engine import EngineConfig, OrcaEngine, Request
from orcastream.schemas.sampling import SamplingParams

_STEPS = 40


@dataclass(frozen=True, slots=True)
class Iteration:
    """One measurement: `share` of a limit; `gap` is the share of time with no kernel running, None if none was seen."""

    seconds: float
    share: float
    gap: float | None


def measure_decodes(
    model: PreTrainedModel, config: EngineConfig, ceilings: Ceilings, batch_size: int, context: int
) -> Iteration:
    """Measure `batch_size` requests decoding at slightly over `context` tokens; bytes count weights and cache once.

    Raises ValueError if the cache cannot hold them all, and before setting up an engine if the device cannot.
    """
    outputs = outputs_of_decodes(batch_size, context, config.token_budget_tokens)
    needed = batch_size * (context + outputs)
    _refuse_too_large(model, needed)
    engine = OrcaEngine(config, model)
    room = engine.cache.blocks_total * config.block_size
    if room < needed:
        raise ValueError(f"the cache holds {room} tokens, and {needed} are needed")
    _submit(engine, batch_size, context, outputs)
    while engine.last_iteration is None or engine.last_iteration.prefill_tokens:
        engine.step()
    for _ in range(4):
        engine.step()
    times = _steps(engine)
    gap = _gap(engine) if engine.device.type == "cuda" else None
    read = _weight_bytes(model) + engine.last_iteration.context_tokens * _cache_bytes(engine)
    seconds = statistics.median(times)
    return Iteration(seconds, read / seconds / ceilings.bytes_per_s, gap)


def _refuse_too_large(model: PreTrainedModel, tokens: int) -> None:
    """Raise ValueError if the device lacks memory for keys and values of that many tokens."""
    if model.device.type != "cuda":
        return
    config = model.config
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * model.dtype.itemsize
    free, _ = torch.cuda.mem_get_info(model.device)
    if tokens * per_token > free:
        raise ValueError(f"the cache takes {tokens * per_token / 2**30:.1f} GiB, and {free / 2**30:.1f} are free")


def outputs_of_decodes(batch_size: int, context: int, token_budget: int) -> int:
    """Return the tokens that the first request generates until the last one has joined and decodes are measured."""
    return 2 * _STEPS + 8 + 2 * -(-batch_size * context // token_budget)


def measure_prefill(model: PreTrainedModel, config: EngineConfig, ceilings: Ceilings, length: int) -> Iteration:
    """Measure one prompt in one chunk, after a warm-up; operations are those of weights and attention that the one
    token to be sampled needs: behind the last attention they are a single row's, and not counted."""
    engine = OrcaEngine(config, model)
    seconds = 0.0
    for seed in range(2):
        _submit(engine, 1, length, 1, seed)
        begun_s = time.perf_counter()
        while engine.has_work:
            engine.step()
        seconds = time.perf_counter() - begun_s
    matrices = [(name, part) for name, part in model.named_parameters() if part.ndim > 1]
    weights = sum(part.numel() for name, part in matrices if is_of_all_rows(name, model))
    attention = sum(
        length * (length + 1) * shape.num_heads * (shape.key_size + shape.value_size) for shape in engine._runner.shapes
    )
    flop = 2.0 * weights * length + attention
    return Iteration(seconds, flop / seconds / ceilings.flop_per_s, None)


def is_of_all_rows(name: str, model: PreTrainedModel) -> bool:
    """Whether a prefill multiplies the matrix of that name with the rows of all tokens."""
    behind_attention = f"layers.{model.config.num_hidden_layers - 1}." in name and ("o_proj" in name or "mlp" in name)
    return "embed" not in name and "lm_head" not in name and not behind_attention


def busy_share(spans: Iterable[tuple[float, float]]) -> float | None:
    """Return the share of the time from the first begin to the last end that `spans` (begin, end) cover; None if there
    are none."""
    ordered = sorted(spans)
    if not ordered:
        return None
    busy, until = 0.0, ordered[0][0]
    for begin, end in ordered:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy / (until - ordered[0][0])


def _submit(engine: OrcaEngine, count: int, context: int, outputs: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=outputs)
    for number in range(count):
        ids = torch.randint(3, engine.limits.vocab_size, (context,), generator=generator).tolist()
        engine.submit(Request(f"{seed}-{number}", tuple(ids), sampling))


def _steps(engine: OrcaEngine) -> list[float]:
    times = []
    for _ in range(_STEPS):
        begun_s = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - begun_s)
    return times


def _gap(engine: OrcaEngine) -> float | None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(_STEPS // 2):
            engine.step()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type.name == "CUDA"]
    busy = busy_share((event.time_range.start, event.time_range.end) for event in events)
    return None if busy is None else 1 - busy


def _weight_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of weights that a decode iteration reads: all except an embedding that is not also the head."""
    tied = model.config.tie_word_embeddings
    return sum(part.nbytes for name, part in model.named_parameters() if tied or "embed" not in name)


def _cache_bytes(engine: OrcaEngine) -> int:
    """Return the cache bytes of one token in all layers."""
    runner = engine._runner
    return sum(runner.bytes_per_block(layer, 1) for layer in range(len(runner.shapes)))
