"""An iteration in two halves: what is launched, and what comes of it."""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch

from engine.batch.flat_batch import FlatBatch, SpanTokens
from engine.kv.cache import KVCache
from engine.model.runner import ModelRunner
from engine.record import Stopwatch
from engine.request import Request
from engine.sampling.sampler import Sampled, SamplingRow, sample
from engine.schedule.plan import Plan


@dataclass(slots=True)
class Pending:
    """A launched iteration. `prefills` are the requests of which it computes a chunk, with its length; `drawing` those
    that get a token, `sampled` what they get, and `failed` the requests that fail alone, with the reason."""

    plan: Plan
    watch: Stopwatch
    context_tokens: int = 0
    prefill_attention: int = 0
    prefills: list[tuple[Request, int]] = field(default_factory=list)
    drawing: list[Request] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def absorb(self, other: "Pending") -> None:
        """Add what a part of the plan that was launched by itself brought."""
        self.context_tokens += other.context_tokens
        self.prefill_attention += other.prefill_attention
        self.prefills += other.prefills
        self.drawing += other.drawing
        self.sampled += other.sampled


class Executor:
    """Lays a plan out as a flat batch, runs it through the model, and samples."""

    def __init__(self, runner: ModelRunner, cache: KVCache, eos_token_ids: Collection[int]) -> None:
        self._runner = runner
        self._cache = cache
        self._eos_token_ids = eos_token_ids

    def launch(self, plan: Plan, watch: Stopwatch) -> Pending:
        """Begin to compute `plan`; its requests have moved on when this returns, and are as before when it raises."""
        watch.lap()
        pending = Pending(plan, watch)
        drawing = [
            request
            for request, length in zip(plan.requests, plan.lengths, strict=True)
            if length == request.num_uncomputed
        ]
        draws = set(map(id, drawing))
        spans = [
            _span(request, length, id(request) in draws)
            for request, length in zip(plan.requests, plan.lengths, strict=True)
        ]
        batch = FlatBatch.build(spans, self._cache, self._runner.device)
        watch.build_s += watch.lap()
        logits = self._runner.forward(batch)
        watch.forward_s += watch.lap()
        pending.context_tokens = int(batch.contexts.sum())
        if drawing:
            rows = [plan.requests[index] for index in batch.logit_spans]
            pending.drawing = [each for request in rows for each in (request, *request.followers)]
            of = [row for row, request in enumerate(rows) for _ in range(1 + len(request.followers))]
            with torch.inference_mode():
                pending.sampled = sample(logits[of], [self._sampling_row(each) for each in pending.drawing])
        watch.sample_s += watch.lap()
        for index, (request, length) in enumerate(zip(plan.requests, plan.lengths, strict=True)):
            request.launch(length)
            if index >= plan.num_decodes:
                pending.prefills.append((request, length))
                pending.prefill_attention += length * request.num_computed
        return pending

    def _sampling_row(self, request: Request) -> SamplingRow:
        params, position = request.sampling, request.num_outputs + request.num_pending
        banned: tuple[int, ...] = ()
        if position < params.min_tokens:
            banned = (*params.stop_token_ids, *(() if params.ignore_eos else self._eos_token_ids))
        return SamplingRow(params, request.seed or 0, position, banned)


def _span(request: Request, length: int, draws: bool) -> SpanTokens:
    assert request.kv is not None
    start = request.num_computed
    return SpanTokens(request.kv, request.tokens[start : start + length], start, int(draws))
