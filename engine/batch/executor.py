"""Computes an iteration, from its plan to its tokens."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch

from orcastream.engine.batch.flat_batch import FlatBatch, SpanColumns
from orcastream.engine.batch.iteration import Drawn, Launched, Pending, Prepared, Unseen
from orcastream.engine.batch.prompt_rows import PromptChunk, PromptItem
from orcastream.engine.batch.transfer import all_copied, copied
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.memory_errors import is_out_of_memory, release
from orcastream.engine.model.runner import ModelRunner
from orcastream.engine.native.maxima import RowMaxima
from orcastream.engine.record import Stopwatch
from orcastream.engine.request import Request, RequestState
from orcastream.engine.sampling.drawing import Draw, compile_draws, draws_on
from orcastream.engine.sampling.likeliest import likeliest
from orcastream.engine.sampling.masks import NO_MASKS, Masks, MaskThread
from orcastream.engine.sampling.picked import Picked
from orcastream.engine.sampling.sampler import Sampled, SamplingRow, best_tokens, sample, take_best
from orcastream.engine.schedule.plan import Plan


class Executor:
    """Lays a plan out as a flat batch, runs it through the model, and samples.

    `launch` does not wait for an asynchronous device; `draw` does.
    """

    def __init__(self, runner: ModelRunner, cache: KVCache, *, vocab_size: int, overlaps: bool) -> None:
        """With `overlaps` an iteration may be launched before the results of the previous one are read."""
        self._runner = runner
        self._cache = cache
        self._overlaps = overlaps
        self._device = runner.device
        self._masks = MaskThread(vocab_size)
        if draws_on(self._device):
            compile_draws(vocab_size, {runner.model.dtype, torch.float32}, self._device)

    def prepare(self, plan: Plan, watch: Stopwatch) -> Prepared:
        """Lay `plan` out; its requests do not change."""
        watch.lap()
        chunks = _prompt_chunks(plan)
        batch = FlatBatch.lay_out(_columns(plan, chunks), self._cache, self._device)
        unknown = []
        if [request for request in plan.requests if request.num_pending]:
            unknown = [
                (int(batch.offsets[place + 1]) - 1, plan.requests[index])
                for place, index in enumerate(batch.order)
                if plan.requests[index].num_pending
            ]
        watch.build_s += watch.lap()
        return Prepared(plan, batch, watch, unknown, chunks)

    def launch(self, prepared: Prepared, pending: Pending, unseen: Unseen | None = None) -> None:
        """Launch the iteration and note it in `pending`. The requests advance; on an error they are unchanged.

        Requests that have ended since the layout are computed, too, but their results are ignored. Tokens unknown at
        the layout are in `unseen` if the host has not read them.
        """
        plan, batch, watch = prepared.plan, prepared.batch, prepared.watch
        watch.lap()
        if prepared.unknown:
            _fill_in(batch, prepared.unknown, unseen)
        rows = [plan.requests[index] for index in batch.logit_spans]
        of_prompts = _RowsOfPrompts.of(prepared) if prepared.chunks else None
        if of_prompts is not None:
            rows = [rows[row] for row in of_prompts.sampled]
        masks = self._masks.begin(rows)
        maxima = RowMaxima(len(rows)) if self._looks_for_maxima(rows, prepared) else None
        logits = self._runner.forward(batch, maxima)
        watch.forward_s += watch.lap()
        pending.context_tokens += int(batch.contexts.sum())
        prompts: list[tuple[PromptChunk, torch.Tensor]] = []
        if of_prompts is not None:
            logits, prompts = of_prompts.parted(logits)
        picked = self._pick(logits, rows) if self._overlaps and masks is None and not prompts else None
        if maxima is not None and not maxima.found:
            maxima = None
        kept = logits if rows and picked is None and maxima is None else None
        pending.launched.append(Launched(kept, rows, picked, maxima, masks, prompts))
        first = plan.num_decodes
        Request.launch_decodes(plan.requests[:first])
        for request, length in zip(plan.requests[first:], plan.lengths[first:], strict=True):
            if request.state is not RequestState.FINISHED:
                request.launch(length)
                pending.prefills.append((request, request.num_computed - length, length))
                pending.prefill_attention += length * request.num_computed

    def _looks_for_maxima(self, rows: Sequence[Request], prepared: Prepared) -> bool:
        """Whether the host chooses the tokens, and all of them by the highest scores alone."""
        return not self._overlaps and not prepared.chunks and bool(rows) and _take_best_alone(rows)

    @torch.inference_mode()
    def _pick(self, logits: torch.Tensor, rows: Sequence[Request]) -> Picked | None:
        """Let the device choose the tokens, if no request asks for more and there is memory for it; else None."""
        if not rows or [each for each in rows if not each.only_draws or each.followers]:
            return None
        draws = None
        if [each for each in rows if not each.takes_best]:
            if not draws_on(self._device):
                return None
            # What a request launched before may be pending.
            draws = [Draw(row, each.num_outputs + each.num_pending, each.draws) for row, each in enumerate(rows)]
        try:
            return Picked(logits, draws)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None

    def told(self, pending: Pending) -> Iterator[tuple[PromptChunk, int, tuple[PromptItem, ...] | None]]:
        """Wait for the logits and yield position and items of each unfinished request's prompt, as in PromptChunk; no
        items if the logits offer none.
        """
        for launched in pending.launched:
            for chunk, logits in launched.prompts:
                if chunk.request.state is not RequestState.FINISHED:
                    try:
                        yield chunk, *chunk.items(logits)
                    except ArithmeticError:
                        yield chunk, 0, None

    def draw(self, pending: Pending) -> Drawn:
        """Wait for the logits and sample, for the unfinished requests and their followers.

        The logits are released, so that they are never in memory together with those of the next iteration.
        """
        pending.watch.lap()
        drawn = Drawn()
        for launched in pending.launched:
            rows = [row for row, request in enumerate(launched.rows) if request.num_pending]
            masks = NO_MASKS if launched.masks is None else launched.masks.result()
            drawn.failed |= masks.failed
            if launched.picked is not None:
                drawn.best += launched.picked.wait(rows)
                drawn.takers += [launched.rows[row] for row in rows]
            elif launched.maxima is not None:
                best = best_tokens(launched.maxima.values.tolist(), launched.maxima.places.tolist())
                drawn.best += [best[row] for row in rows]
                drawn.takers += [launched.rows[row] for row in rows]
            elif launched.logits is not None:
                self._draw(launched, launched.logits, rows, masks, drawn)
        pending.launched.clear()
        pending.watch.sample_s += pending.watch.lap()
        return drawn

    @torch.inference_mode()
    def _draw(self, launched: Launched, logits: torch.Tensor, rows: list[int], masks: Masks, drawn: Drawn) -> None:
        """Sample from those rows of the logits, in halves if memory does not suffice for all at once."""
        requests = [launched.rows[row] for row in rows]
        beams = [row for row in rows if launched.rows[row].beam is not None]
        try:
            if _take_best_alone(requests):
                drawn.best += take_best(logits, rows)
                drawn.takers += requests
                return
            others = [row for row in rows if row not in beams] if beams else rows
            tokens = self._tokens(launched, logits, others, masks)
            candidates = [self._candidates(launched.rows[row], logits, row) for row in beams]
        except Exception as error:
            if len(rows) == 1 or not is_out_of_memory(error):
                raise
            release(error)
            self._draw(launched, logits, rows[: len(rows) // 2], masks, drawn)
            self._draw(launched, logits, rows[len(rows) // 2 :], masks, drawn)
            return
        drawn.tokens += tokens
        drawn.candidates += zip([launched.rows[row] for row in beams], candidates, strict=True)

    def _tokens(
        self, launched: Launched, logits: torch.Tensor, rows: list[int], masks: Masks
    ) -> list[tuple[Request, Sampled]]:
        """Return the next token of each request of `rows`, and of its followers."""
        of, drawing = [], []
        for row in rows:
            request = launched.rows[row]
            for each in (request, *request.followers):
                if each not in masks.failed:
                    of.append(row)
                    drawing.append(each)
        if not of:
            return []
        bits = masks.to(logits.device) if masks.rows else None
        sampled = sample(logits, [self._sampling_row(each, masks) for each in drawing], of, bits)
        return list(zip(drawing, sampled, strict=True))

    def _candidates(self, request: Request, logits: torch.Tensor, row: int) -> list[tuple[int, float]]:
        assert request.beam is not None
        banned = self._banned(request)
        count = request.beam.num_of_each(request.stop_ids)
        (found,) = likeliest(logits, [row], min(count + len(banned), logits.shape[1]))
        return [(token, logprob) for token, logprob in found if token not in banned][:count]

    def _sampling_row(self, request: Request, masks: Masks) -> SamplingRow:
        banned = self._banned(request)
        position = len(request.tokens) - len(request.prompt_ids)
        if request.changes is not None:
            request.changes.see(request.output_ids)
        ids = tuple(sorted(banned)) if banned else ()
        mask = masks.rows.get(request)
        return SamplingRow(request.sampling, request.seed or 0, position, ids, request.changes, mask)

    def _banned(self, request: Request) -> frozenset[int]:
        """Return the tokens that may not come next."""
        least = request.sampling.min_tokens
        if not least or request.num_outputs >= least:
            return _NOTHING
        return request.stop_ids


def _take_best_alone(requests: Sequence[Request]) -> bool:
    """Whether all take their likeliest token and ask for nothing else."""
    return not [each for each in requests if not each.takes_best or each.followers]


_NOTHING: frozenset[int] = frozenset()


def _fill_in(batch: FlatBatch, unknown: Sequence[tuple[int, Request]], unseen: Unseen | None) -> None:
    """Write the tokens that were unknown at the layout into `batch`, from the host or, if `unseen`, on the device."""
    sources = [request.tokens[-1] for _, request in unknown] if unseen is None else unseen.rows
    arrays = [np.asarray([index for index, _ in unknown]), np.asarray(sources)]
    places, tokens = all_copied(arrays, batch.device)
    if unseen is not None:
        assert unseen.picked is not None
        tokens = unseen.picked.tokens[tokens]
    batch.input_ids[0].index_copy_(0, places, tokens)


def _prompt_chunks(plan: Plan) -> dict[int, PromptChunk]:
    """Return the prompt chunks of prefills that report log probabilities, by their index in `plan`."""
    asking = [index for index, each in enumerate(plan.requests) if each.prompt_logprobs is not None]
    chunks = {index: PromptChunk.of(plan.requests[index], plan.lengths[index]) for index in asking}
    return {index: chunk for index, chunk in chunks.items() if chunk is not None and index >= plan.num_decodes}


class _RowsOfPrompts(NamedTuple):
    """Indices of logits rows: `sampled`, one per request whose next token is sampled; `told`, the first row of each
    prompt that reports log probabilities."""

    sampled: list[int]
    told: list[tuple[PromptChunk, int]]

    @classmethod
    def of(cls, prepared: Prepared) -> "_RowsOfPrompts":
        chunks, sampled, begins, begin = prepared.chunks, [], {}, 0
        for index, rows in groupby(prepared.batch.logit_spans):
            begins[index] = begin
            begin += len(list(rows))
            if index not in chunks or chunks[index].rows > chunks[index].told:
                sampled.append(begin - 1)
        return cls(sampled, [(chunk, begins.get(index, 0)) for index, chunk in chunks.items()])

    def parted(self, logits: torch.Tensor) -> tuple[torch.Tensor, list[tuple[PromptChunk, torch.Tensor]]]:
        """Return the logits to sample from, and those of prompts."""
        rows = copied(np.asarray(self.sampled, dtype=np.int64), logits.device)
        return logits[rows], [(chunk, logits[begin : begin + chunk.told]) for chunk, begin in self.told]


def _columns(plan: Plan, chunks: Mapping[int, PromptChunk]) -> SpanColumns:
    """Return the spans of `plan`, with a placeholder for each token that is not known yet."""
    first = plan.num_decodes
    decodes = plan.requests[:first]
    columns = SpanColumns(
        rows=[request.kv.row for request in decodes],  # type: ignore[union-attr]  # all that is planned holds blocks
        starts=[request.num_computed for request in decodes],
        lengths=plan.lengths[:first],
        num_logits=[1] * first,
        ids=[request.tokens[-1] for request in decodes],
    )
    for index, (request, length) in enumerate(zip(plan.requests[first:], plan.lengths[first:], strict=True), first):
        assert request.kv is not None
        start = request.num_computed
        ids = request.tokens[start : start + length]
        if len(ids) < length:
            ids.append(0)
        chunk = chunks.get(index)
        num_logits = int(length == request.num_uncomputed) if chunk is None else chunk.rows
        columns.add(request.kv, ids, start, num_logits)
    if [request for request in plan.requests if request.adapter is not None]:
        columns.adapters = [-1 if each.adapter is None else each.adapter.number for each in plan.requests]
    return columns
