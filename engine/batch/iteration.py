"""One forward pass and its sampling, for the spans of a plan."""

from collections.abc import Collection, Sequence

import torch

from engine.batch.flat_batch import FlatBatch, Rows
from engine.model.runner import ModelRunner
from engine.record import Stopwatch
from engine.request import Request
from engine.sampling.sampler import Sampled, SamplingRow, sample
from engine.schedule.scheduler import Span


def compute(
    runner: ModelRunner, spans: Sequence[Span], block_size: int, eos_token_ids: Collection[int], watch: Stopwatch
) -> dict[str, Sampled]:
    """Compute `spans` in one flat batch; what was sampled, by request id, for those spans that sample.

    The time that each phase takes is added to `watch`.
    """
    watch.lap()
    rows = [
        Rows(span.request.tokens[span.start : span.stop], span.start, span.request.table, span.samples)
        for span in spans
    ]
    batch = FlatBatch.build(rows, block_size, runner.device)
    watch.build_s += watch.lap()
    logits = runner.forward(batch)
    watch.forward_s += watch.lap()
    if not batch.sampled:
        return {}
    requests = [spans[index].request for index in batch.sampled]
    with torch.inference_mode():
        sampled = sample(logits, [_sampling_row(request, eos_token_ids) for request in requests])
    watch.sample_s += watch.lap()
    return {request.id: token for request, token in zip(requests, sampled, strict=True)}


def _sampling_row(request: Request, eos_token_ids: Collection[int]) -> SamplingRow:
    params = request.sampling
    banned: tuple[int, ...] = ()
    if request.num_outputs < params.min_tokens:
        banned = (*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids))
    return SamplingRow(params, request.seed or 0, request.num_outputs, banned)
