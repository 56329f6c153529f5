"""How far a model's logits in flat batches are from its own."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from orcastream.engine.attention import AttentionBackend
from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.digest import ContentChain
from orcastream.engine.kv.layout import group_layers
from orcastream.engine.model.runner import ModelRunner
from orcastream.engine.model.self_check.reference import Reference, refusing
from orcastream.engine.model.self_check.schedule import Schedule

_BLOCK_SIZE = 4
_Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Deviation:
    """Distance of two rows of logits, relative to the spread of the model's own: of the worst and the median row."""

    of_all: float
    of_median: float

    @classmethod
    def between(cls, logits: torch.Tensor, expected: torch.Tensor) -> "Deviation":
        """Compare `[rows, vocab]` with `[rows, vocab]`."""
        flat, expected = logits.float(), expected.float()
        spread = (expected - expected.mean(dim=-1, keepdim=True)).norm(dim=-1).clamp(min=1e-6)
        errors = (flat - expected).norm(dim=-1) / spread
        errors = errors.nan_to_num(nan=torch.inf)
        return cls(float(errors.max()), float(errors.median()))

    @classmethod
    def of(
        cls, model: PreTrainedModel, backend: AttentionBackend, reference: Reference, schedule: Schedule
    ) -> "Deviation":
        """Compare the rows that the model computes in flat batches with the reference, which follows that schedule."""
        with refusing(model):
            longest = max(map(len, reference.sequences))
            pairs = _pairs(ModelRunner(model, backend, max_model_len=longest), schedule, reference)
        flat, expected = (torch.stack(rows) for rows in zip(*pairs, strict=True))
        return cls.between(flat, expected)


def _pairs(runner: ModelRunner, schedule: Schedule, reference: Reference) -> list[_Pair]:
    """Return pairs of rows: from the flat batch, and the model's own for the same token."""
    sequences = reference.sequences
    cache = _make_cache(runner, [len(sequence) for sequence in sequences])
    held = [cache.open(ContentChain("", ""), len(sequence))[0] for sequence in sequences]
    done = [0] * len(sequences)
    pairs: list[_Pair] = []
    for iteration in range(max(join + len(chunks) for join, chunks in schedule)):
        members, spans = [], []
        for index, (join, chunks) in enumerate(schedule):
            if not 0 <= iteration - join < len(chunks):
                continue
            ids = sequences[index][done[index] : done[index] + chunks[iteration - join]]
            if not ids:
                continue
            cache.grow(held[index], done[index], done[index] + len(ids))
            spans.append(SpanTokens(held[index], ids, done[index], int(iteration > 0)))
            members.append(index)
            done[index] += len(ids)
        if not spans:
            continue
        batch = FlatBatch.build(spans, cache, runner.device)
        logits = runner.forward(batch)
        for row, member in zip(logits, (members[i] for i in batch.logit_spans), strict=True):
            pairs.append((row, reference.logits[member][done[member] - 1]))
    return pairs


def _make_cache(runner: ModelRunner, lengths: list[int]) -> KVCache:
    """Return a cache for sequences of these lengths, laid out as in the engine: layers with a window release blocks."""
    groups = group_layers(runner.shapes, max(lengths))
    num_blocks = [sum(-(-length // _BLOCK_SIZE) for length in lengths)] * len(groups)
    runner.allocate(groups, num_blocks, _BLOCK_SIZE)
    return KVCache(
        groups,
        num_blocks,
        block_size=_BLOCK_SIZE,
        max_sequences=len(lengths),
        max_model_len=max(lengths),
        longest_span=max(lengths),
        prefix_cache=False,
    )
