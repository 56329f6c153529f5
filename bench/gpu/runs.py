"""The engine and transformers' continuous batching, one after the other on the same model and requests."""

import time
from collections.abc import Sequence
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from orcastream.bench.figures.outcome import Objectives
from orcastream.bench.offline.drive import Drive
from orcastream.bench.workloads import WORKLOADS, Draw, SampleRequest, token_ids
from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.model.quiet import quiet


def draw_requests(workload: str, vocab_size: int, seed: int, requests: int | None = None) -> list[SampleRequest]:
    """Return the requests of one workload, all at once."""
    count = requests or WORKLOADS[workload].requests
    return WORKLOADS[workload].build(Draw(vocab_size=vocab_size, seed=seed, requests=count, time_scale=0.0))


def run_engine(model: PreTrainedModel, config: EngineConfig, requests: Sequence[SampleRequest]) -> float:
    """Return output tokens per second, after a warm-up run."""
    engine = OrcaEngine(config, model)
    warm = Drive(engine, requests[:2], Objectives())
    warm.run()
    drive = Drive(engine, requests, Objectives())
    drive.run()
    tokens = sum(outcome.tokens for outcome in drive.outcomes)
    seconds = drive.until_s - drive.begun_s
    return tokens / seconds


def run_transformers(model: PreTrainedModel, requests: Sequence[SampleRequest], config: dict[str, Any]) -> float:
    """Return output tokens per second of transformers' continuous batching with its own attention, after its own
    warm-up and one more run. Raises RuntimeError if it fails."""
    with quiet():
        model.set_attn_implementation("sdpa")
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    settings = ContinuousBatchingConfig(**config)
    with model.continuous_batching_context_manager(generation, continuous_batching_config=settings) as manager:
        _generated(manager, requests[:2])
        begun_s = time.monotonic()
        tokens = _generated(manager, requests)
        seconds = time.monotonic() - begun_s
    return tokens / seconds


def _generated(manager: Any, requests: Sequence[SampleRequest]) -> int:
    """Return the output tokens of `requests` after all have ended."""
    for request in requests:
        manager.add_request(list(token_ids(request)), max_new_tokens=request.max_tokens)
    tokens, ended = 0, 0
    while ended < len(requests):
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("transformers' continuous batching ended unexpectedly")
            continue
        if result.error is not None:
            raise RuntimeError(f"transformers' continuous batching: {result.error}")
        tokens, ended = tokens + len(result.generated_tokens), ended + 1
    return tokens
