"""The self-check: compares a model's logits in flat batches with its own computation before the first request."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from transformers import PreTrainedModel

from orcastream.engine.attention import AttentionBackend
from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.errors import UnsupportedModel
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.digest import ContentChain
from orcastream.engine.kv.layout import group_layers
from orcastream.engine.model.quiet import quiet
from orcastream.engine.model.runner import ModelRunner
from orcastream.engine.model.support import refuse_unsupported
from orcastream.engine.model.tiny_copy import POSITIONS, thresholds, tiny_copy

_BLOCK_SIZE = 4
_Schedule = tuple[tuple[int, tuple[int, ...]], ...]
_SHORT: _Schedule = (
    (0, (6, 5, 7, 1, 1)),
    (1, (5, 1, 1, 1, 1)),
    (2, (22, 1, 1, 1)),
    (2, (3, 9, 1, 1)),
)
"""For each request the iteration in which it joins, and its tokens in each iteration. The first iteration has a single
chunk and asks for no logits, like a chunk that does not finish its prompt. One iteration has more than 32 rows, which
some operators split, and two thirds of the compared rows are single tokens, so that the median row is one. Kept short,
because each token makes startup longer.
"""

_LONG: _Schedule = (
    (0, (13, 9, 12, 1, 1, 1, 1)),
    (1, (7, 1, 1, 1, 1, 1)),
    (2, (30, 1, 1, 1, 1)),
    (2, (3, 14, 1, 5, 2)),
    (1, (60, 75, 1, 1, 20)),
)
"""A longer schedule, which only the small copy can afford. One request exceeds 128 tokens, to catch architectures that
change their computation there without a threshold of a known name."""

_PROBE_TOKENS = 1024
"""Tokens of the small copy's probe. Some architectures keep one more key for every 128 tokens of the stream."""

_TOLERANCE = {torch.float32: 2e-3}
_LOW_PRECISION_TOLERANCE = 0.1
_TINY_TOLERANCE = 5e-4
_ROUNDINGS = 4
"""How many times the distance between its own float32 and float64 logits a small copy's error may be. Some
architectures, such as Gemma 3n, amplify rounding beyond the tolerance, depending on the processor."""


def check_model(model: PreTrainedModel, backend: AttentionBackend, max_model_len: int) -> None:
    """Run all checks that are possible before the first request. Raises UnsupportedModel with the reason."""
    refuse_unsupported(model.config, max_model_len)
    check_small_copy(model, backend, max_model_len)
    check_loaded(model, backend, Reference.of(model, max_model_len))


class SmallCopy:
    """A small random float32 model of the same architecture as another, and its own logits."""

    def __init__(self, model: PreTrainedModel, shrunk: Collection[str], longest: int) -> None:
        """`shrunk` as for `tiny_copy`; sequences have at most `longest` tokens."""
        self._new_copy = partial(tiny_copy, model, shrunk)
        self._model = self._new_copy()
        self._reference = Reference.of(self._model, longest, _LONG)

    def compare(self, backend: AttentionBackend) -> tuple[float, float]:
        """Return the error of its worst row in flat batches, relative to the spread of the row, and what is allowed."""
        error = _largest_error(self._model, backend, self._reference, _LONG).of_all
        return error, self.tolerance(error)

    def tolerance(self, error: float) -> float:
        """Return the largest error that rounding explains; measured only if `error` exceeds the usual tolerance."""
        return _TINY_TOLERANCE if error <= _TINY_TOLERANCE else self._amplified_tolerance

    @cached_property
    def _amplified_tolerance(self) -> float:
        exact = self._new_copy().double()
        try:
            logits = [_own_logits(exact, sequence) for sequence in self._reference.sequences]
        except Exception:  # it computes in one dtype only
            return _TINY_TOLERANCE
        rounding = _distance(torch.cat(self._reference.logits), torch.cat(logits))
        return max(_TINY_TOLERANCE, _ROUNDINGS * rounding.of_all)

    def by_itself(self) -> PreTrainedModel:
        """Return the model with its own attention, for passes that replace its modules."""
        _attend_eagerly(self._model)
        return self._model

    def check(self, backend: AttentionBackend) -> None:
        """Raise UnsupportedModel if the model, whose modules were replaced, computes something else."""
        found, allowed = self.compare(backend)
        if found > allowed:
            raise UnsupportedModel(f"relative error {found:.2g} on a small random copy, allowed {allowed:.2g}")


def check_small_copy(model: PreTrainedModel, backend: AttentionBackend, max_model_len: int) -> SmallCopy:
    """Compare on a small random copy whose windows, chunk sizes and original lengths are shorter than the check.

    A check on the loaded weights cannot detect a threshold of thousands of tokens. A threshold that `max_model_len`
    never reaches is unchanged. Returns the copy. Raises UnsupportedModel, which names the thresholds not respected.
    """
    longest = min(POSITIONS, max_model_len)
    crossed = {threshold.name: threshold.tokens for threshold in thresholds(model.config, max_model_len)}

    def is_same(shrunk: Collection[str]) -> bool:
        error, allowed = SmallCopy(model, shrunk, longest).compare(backend)
        return error <= allowed

    copy = SmallCopy(model, crossed, longest)
    found, allowed = copy.compare(backend)
    if found <= allowed:
        ModelRunner(tiny_copy(model, ()), backend).probe(_PROBE_TOKENS, longest)
        return copy
    broken = {name: tokens for name, tokens in crossed.items() if not is_same([name])}
    if broken and is_same(()):
        named = ", ".join(f"{name}={tokens}" for name, tokens in broken.items())
        raise UnsupportedModel(
            f"{type(model).__name__} does not keep {named} in a flat batch, as its attention layers do not receive it; "
            f"it can run with max_model_len of at most {min(broken.values())}"
        )
    raise UnsupportedModel(
        f"{type(model).__name__} computes other logits in a flat batch than alone: relative error {found:.2g} on "
        f"a small random copy, allowed {allowed:.2g}"
    )


@dataclass(frozen=True, slots=True)
class Reference:
    """Random sequences, and the logits that a model computes for them alone, `[len(sequence), vocab]` each."""

    sequences: list[list[int]]
    logits: list[torch.Tensor]

    @classmethod
    def of(cls, model: PreTrainedModel, max_model_len: int, schedule: _Schedule = _SHORT) -> "Reference":
        """Compute the reference of `model` with its own eager attention. Raises UnsupportedModel if it does not run."""
        vocab_size = model.config.get_text_config().vocab_size
        generator = torch.Generator().manual_seed(1)
        sequences = [
            torch.randint(vocab_size, (min(sum(chunks), max_model_len),), generator=generator).tolist()
            for _, chunks in schedule
        ]
        with _unsupported(model):
            return cls(sequences, [_own_logits(model, sequence) for sequence in sequences])


def check_loaded(
    model: PreTrainedModel, backend: AttentionBackend, reference: Reference, *, rounded: bool = False
) -> None:
    """Compare on the loaded weights. Raises UnsupportedModel if the logits differ by more than rounding.

    `reference` is of the same weights. Modules of `model` may have been replaced since then; with `rounded` their
    weights have fewer bits.
    """
    error = _largest_error(model, backend, reference, _SHORT)
    exact = model.dtype in _TOLERANCE and not rounded
    tolerance = _TOLERANCE[model.dtype] if exact else _LOW_PRECISION_TOLERANCE
    # In 16 bits a router may choose other experts for single tokens, so only the median row must match.
    measured = error.of_all if exact else error.of_median
    if measured <= tolerance:
        return
    if not all(bool(logits.isfinite().all()) for logits in reference.logits):
        raise UnsupportedModel(
            f"{type(model).__name__} computes logits in {str(model.dtype).removeprefix('torch.')} that are not finite, "
            "also by its own attention: its weights are damaged, or its numbers are beyond that format"
        )
    raise UnsupportedModel(
        f"{type(model).__name__} computes other logits in a flat batch than alone: relative error "
        f"{measured:.2g} on the loaded weights, allowed {tolerance}"
    )


@dataclass(frozen=True, slots=True)
class _Error:
    """Distance of two rows of logits, relative to the spread of the model's own: of the worst and the median row."""

    of_all: float
    of_median: float


@contextmanager
def _unsupported(model: PreTrainedModel) -> Iterator[None]:
    try:
        yield
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(f"{type(model).__name__} does not run in a flat batch: {error!r}") from error


def _largest_error(
    model: PreTrainedModel, backend: AttentionBackend, reference: Reference, schedule: _Schedule
) -> _Error:
    with _unsupported(model):
        pairs = _compare(ModelRunner(model, backend), schedule, reference.sequences, reference.logits)
    flat, expected = (torch.stack(rows) for rows in zip(*pairs, strict=True))
    return _distance(flat, expected)


def _distance(logits: torch.Tensor, expected: torch.Tensor) -> _Error:
    """Compare `[rows, vocab]` with `[rows, vocab]`."""
    flat, expected = logits.float(), expected.float()
    spread = (expected - expected.mean(dim=-1, keepdim=True)).norm(dim=-1).clamp(min=1e-6)
    errors = (flat - expected).norm(dim=-1) / spread
    errors = errors.nan_to_num(nan=torch.inf)
    return _Error(float(errors.max()), float(errors.median()))


@torch.inference_mode()
def _own_logits(model: PreTrainedModel, sequence: list[int]) -> torch.Tensor:
    """Return the model's own eager logits, `[len(sequence), vocab]`."""
    _attend_eagerly(model)
    ids = torch.tensor([sequence], device=model.device)
    positions = torch.arange(len(sequence), device=model.device).unsqueeze(0)
    logits: torch.Tensor = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
    return logits


def _attend_eagerly(model: PreTrainedModel) -> None:
    with quiet():
        model.set_attn_implementation("eager")


def _compare(
    runner: ModelRunner, schedule: _Schedule, sequences: list[list[int]], own: list[torch.Tensor]
) -> list[Any]:
    """Return pairs of rows: from the flat batch, and the model's own for the same token."""
    cache = _make_cache(runner, [len(sequence) for sequence in sequences])
    held = [cache.open(ContentChain("", ""), len(sequence))[0] for sequence in sequences]
    done = [0] * len(sequences)
    pairs = []
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
            pairs.append((row, own[member][done[member] - 1]))
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
