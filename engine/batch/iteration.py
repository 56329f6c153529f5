"""What one iteration is on its way: laid out, launched, and what it brings."""

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch

from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.batch.prompt_rows import PromptChunk
from orcastream.engine.record import IterationRecord, Stopwatch
from orcastream.engine.request import Request
from orcastream.engine.sampling.masks import Masks
from orcastream.engine.sampling.picked import Picked
from orcastream.engine.sampling.sampler import Sampled
from orcastream.engine.schedule.plan import Plan


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan, laid out; `unknown` are the stream indices of tokens that an earlier iteration has yet to bring, `chunks`
    those of prompts whose log probabilities are told, by their place in the plan."""

    plan: Plan
    batch: FlatBatch
    watch: Stopwatch
    unknown: list[tuple[int, Request]]
    chunks: dict[int, PromptChunk]


@dataclass(slots=True)
class Launched:
    """Logits that the device computes, `[len(rows), vocab]`, and the requests that they belong to.

    None are kept where there are no such requests, or where all take their likeliest tokens: `picked` has those then.
    `masks` are those of the requests that may not say everything, where there are any. `prompts` have logits of their
    own, `[told, vocab]`.
    """

    logits: torch.Tensor | None
    rows: list[Request]
    picked: Picked | None = None
    masks: "Future[Masks] | None" = None
    prompts: list[tuple[PromptChunk, torch.Tensor]] = field(default_factory=list)


class Unseen(NamedTuple):
    """Some tokens of a launched iteration: those rows of what it picked, which is None only where there are no rows."""

    picked: Picked | None
    rows: list[int]


@dataclass(slots=True)
class Pending:
    """A launched iteration. `prefills` are the requests of which it computes a chunk, with its length; `failed` those
    that fail alone, with the reason."""

    plan: Plan
    watch: Stopwatch
    context_tokens: int = 0
    prefill_attention: int = 0
    launched: list[Launched] = field(default_factory=list)
    prefills: list[tuple[Request, int]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def unseen(self, unknown: Iterable[tuple[int, Request]]) -> Unseen | None:
        """The tokens that are `unknown` to an iteration behind this one, at whose logits nobody has looked.

        None: somebody has to look first.
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
        """What the iteration was made of, once it is over."""
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
    """What an iteration brings: tokens, and for hypotheses of beam searches the likeliest ones to go on with.

    `best[i]` is the token of `takers[i]`, of which each takes its likeliest one; None where the logits offer none.
    `failed` are requests of which nobody can say what may come, with the reason.
    """

    takers: list[Request] = field(default_factory=list)
    best: list[int | None] = field(default_factory=list)
    tokens: list[tuple[Request, Sampled]] = field(default_factory=list)
    candidates: list[tuple[Request, list[tuple[int, float]]]] = field(default_factory=list)
    failed: dict[Request, str] = field(default_factory=dict)
