"""The stages of one iteration: prepared, launched, pending, and its results."""

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch

from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.batch.prompt_rows import PromptChunk
from orcastream.engine.native.maxima import RowMaxima
from orcastream.engine.record import IterationRecord, Stopwatch
from orcastream.engine.request import Request
from orcastream.engine.sampling.masks import Masks
from orcastream.engine.sampling.picked import Picked
from orcastream.engine.sampling.sampler import Sampled
from orcastream.engine.schedule.plan import Plan


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan, laid out as a batch. `unknown` are the stream indices of tokens that an earlier iteration has yet to
    produce, `chunks` the prompt chunks that report log probabilities, by their index in the plan."""

    plan: Plan
    batch: FlatBatch
    watch: Stopwatch
    unknown: list[tuple[int, Request]]
    chunks: dict[int, PromptChunk]


@dataclass(slots=True)
class Launched:
    """Logits that the device computes, `[len(rows), vocab]`, and the requests that they belong to.

    They are None if there are no such requests, or if all take their likeliest tokens, which are in `picked` or
    `maxima` then. `masks` are those of constrained requests, if there are any. `prompts` have separate logits, `[told,
    vocab]`.
    """

    logits: torch.Tensor | None
    rows: list[Request]
    picked: Picked | None = None
    maxima: RowMaxima | None = None
    masks: "Future[Masks] | None" = None
    prompts: list[tuple[PromptChunk, torch.Tensor]] = field(default_factory=list)


class Unseen(NamedTuple):
    """Some tokens of a launched iteration: `rows` of its `picked`, which is None only if there are no rows."""

    picked: Picked | None
    rows: list[int]


@dataclass(slots=True)
class Pending:
    """A launched iteration. `prefills` are the requests of which it computes a chunk, with its start and length;
    `failed` those that fail alone, with the reason."""

    plan: Plan
    watch: Stopwatch
    context_tokens: int = 0
    prefill_attention: int = 0
    launched: list[Launched] = field(default_factory=list)
    prefills: list[tuple[Request, int, int]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def unseen(self, unknown: Iterable[tuple[int, Request]]) -> Unseen | None:
        """Return the tokens that are `unknown` to the next iteration and that the host has not read.

        None if the host must read the results first.
        """
        if self.failed or len(self.launched) != 1:
            return None
        (launched,) = self.launched
        if launched.logits is not None or launched.prompts:
            return None
        rows = {request: row for row, request in enumerate(launched.rows)}
        found = [rows.get(request) for _, request in unknown]
        return None if None in found else Unseen(launched.picked, cast(list[int], found))

    def record(self, total_s: float) -> IterationRecord:
        """Return the record of the finished iteration."""
        watch, plan = self.watch, self.plan
        return IterationRecord(
            started_s=watch.started_s,
            select_s=watch.select_s,
            build_s=watch.build_s,
            forward_s=watch.forward_s,
            sample_s=watch.sample_s,
            total_s=total_s,
            prefill_tokens=plan.prefill_tokens,
            decode_tokens=plan.num_decodes,
            context_tokens=self.context_tokens,
            requests=plan.requests,
            lengths=plan.lengths,
            prefill_attention=self.prefill_attention,
        )


@dataclass(slots=True)
class Drawn:
    """The results of an iteration: tokens, and the candidates for hypotheses of beam searches.

    `best[i]` is the token of `takers[i]`, which all take their likeliest token; None if the logits offer none.
    `failed` are requests whose constraint failed, with the reason.
    """

    takers: list[Request] = field(default_factory=list)
    best: list[int | None] = field(default_factory=list)
    tokens: list[tuple[Request, Sampled]] = field(default_factory=list)
    candidates: list[tuple[Request, list[tuple[int, float]]]] = field(default_factory=list)
    failed: dict[Request, str] = field(default_factory=dict)
