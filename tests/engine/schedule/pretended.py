"""A scheduler with a real KVCache and a fake model: blocks hold the tokens themselves.

So every iteration can check that a request sees in its blocks what it has computed, however these were shared, copied,
evicted, swapped or preempted.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from orcastream.engine.config import EngineConfig
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import LayerGroup
from orcastream.engine.record import IterationRecord
from orcastream.engine.request import Request
from orcastream.engine.schedule.make import make_scheduler
from orcastream.engine.schedule.plan import Plan
from orcastream.engine.schedule.pool import RequestPool
from orcastream.engine.schedule.scheduler import Scheduler
from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.stopping import FinishReason

BLOCK_SIZE = 4
_names = itertools.count()


class TokenStore:
    """Replaces the tensors of a group: slot s of block b holds a token id."""

    def __init__(self, num_blocks: int, num_host_slots: int) -> None:
        self.tokens = np.full((num_blocks, BLOCK_SIZE), -1)
        self.host = np.full((num_host_slots, BLOCK_SIZE), -1)
        self.copies = 0

    def copy(self, source: int, target: int) -> None:
        self.tokens[target] = self.tokens[source]
        self.copies += 1

    def to_host(self, blocks: Sequence[int], slots: Sequence[int]) -> bool:
        self.host[list(slots)] = self.tokens[list(blocks)]
        return True

    def to_device(self, slots: Sequence[int], blocks: Sequence[int]) -> bool:
        self.tokens[list(blocks)] = self.host[list(slots)]
        return True


def make(
    policy: str = "fcfs",
    *,
    num_blocks: int = 10,
    host_slots: int = 0,
    budget: int = 8,
    batch: int = 4,
    window: int | None = None,
    prefix_cache: bool = True,
    max_model_len: int = 200,
    **settings: Any,
) -> Scheduler:
    """Return a scheduler over a cache of `num_blocks` blocks of 4 tokens; `window` adds a group of layers with one."""
    groups = [LayerGroup(None, (0,))] + ([] if window is None else [LayerGroup(window, (1,))])
    config = EngineConfig(
        "pretended",
        policy=policy,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=budget,
        max_batch_size=batch,
        host_cache_memory=max(1, host_slots),
        **settings,
    )
    cache = KVCache(
        groups,
        [num_blocks] * len(groups),
        block_size=BLOCK_SIZE,
        max_sequences=batch,
        max_model_len=max_model_len,
        longest_span=budget,
        stores=[TokenStore(num_blocks, host_slots) for _ in groups],  # type: ignore[misc]
        prefix_cache=prefix_cache,
        num_host_slots=[host_slots] * len(groups),
    )
    return make_scheduler(config, RequestPool(), cache)


def request(prompt: int | Sequence[int], max_tokens: int = 4, name: str | None = None, **fields: Any) -> Request:
    """Return a request with this number of different prompt tokens, or with these tokens."""
    number = next(_names)
    ids = tuple(range(1000 * number, 1000 * number + prompt)) if isinstance(prompt, int) else tuple(prompt)
    return Request(name or f"request-{number}", ids, SamplingParams(max_tokens=max_tokens), **fields)


def add(scheduler: Scheduler, prompt: int | Sequence[int], max_tokens: int = 4, **fields: Any) -> Request:
    """Add a request that waits in the scheduler."""
    made = request(prompt, max_tokens, **fields)
    scheduler.add(made)
    return made


def next_token(request: Request, position: int) -> int:
    """Return the fake model's output: the same for a request however it got there."""
    return hash((request.id, position)) % 97


def compute(scheduler: Scheduler, plan: Plan, seconds: float = 0.01) -> list[Request]:
    """Do what the engine does with a plan, and return the requests that finish."""
    prefill_attention = 0
    for index, (each, length) in enumerate(zip(plan.requests, plan.lengths, strict=True)):
        _write(scheduler.cache, each, length)
        each.launch(length)
        if index >= plan.num_decodes:
            prefill_attention += length * each.num_computed
        if each.tells_prompt:
            each.prompt_told = max(each.prompt_told, min(each.num_computed + 1, len(each.prompt_ids)))
    drawing = [each for each in plan.requests if each.num_pending]
    for each in list(drawing):
        if each.followers:
            drawing += scheduler.split(each)
    for each in plan.requests:
        assert each.kv is not None
        scheduler.cache.computed(each.kv, each.tokens, each.num_computed)
    finished = []
    for each in drawing:
        each.append(next_token(each, each.num_outputs))
        if each.num_outputs == each.max_tokens:
            scheduler.finish(each)
            each.finish(FinishReason.LENGTH)
            finished.append(each)
    scheduler.policy.observe(_record(plan, prefill_attention, seconds))
    return finished


def _write(cache: KVCache, each: Request, length: int) -> None:
    """Write the span's tokens to its blocks, and check that the tokens before it are there."""
    kv, stop = each.kv, each.num_computed + length
    assert kv is not None
    assert stop <= kv.capacity, "a span must have its slots"
    for group in cache.groups:
        table, store = kv.blocks[group.index], group.store
        assert isinstance(store, TokenStore)
        for position in range(each.num_computed, stop):
            assert not group.pool.is_shared(table[position // BLOCK_SIZE]), "a shared block is written to"
            store.tokens[table[position // BLOCK_SIZE], position % BLOCK_SIZE] = each.tokens[position]
        seen = 0 if group.window is None else max(0, each.num_computed - group.window + 1)
        for position in range(seen, stop):
            assert store.tokens[table[position // BLOCK_SIZE], position % BLOCK_SIZE] == each.tokens[position]


def _record(plan: Plan, prefill_attention: int, seconds: float) -> IterationRecord:
    return IterationRecord(
        started_s=0.0,
        select_s=0.0,
        build_s=0.0,
        forward_s=seconds,
        sample_s=0.0,
        total_s=seconds,
        prefill_tokens=plan.prefill_tokens,
        decode_tokens=plan.num_decodes,
        context_tokens=sum(each.num_computed for each in plan.requests),
        requests=plan.requests,
        lengths=plan.lengths,
        prefill_attention=prefill_attention,
    )


def step(scheduler: Scheduler) -> dict[str, int]:
    """Run one iteration and return the tokens of each request in it."""
    plan = scheduler.select()
    scheduler.check_integrity()
    lengths = dict(zip((each.id for each in plan.requests), plan.lengths, strict=True))
    compute(scheduler, plan)
    scheduler.check_integrity()
    return lengths


def drain(scheduler: Scheduler, most: int = 5000) -> list[dict[str, int]]:
    """Iterate until no request is left, where each iteration computes something, and return their tokens."""
    steps = []
    while len(scheduler.requests):
        steps.append(step(scheduler))
        assert steps[-1], "there is work, but nothing is computed"
        assert len(steps) < most, "the work does not end"
    assert scheduler.cache.blocks_used == 0
    return steps


def cancel(scheduler: Scheduler, each: Request) -> None:
    """Cancel a request as the engine does."""
    scheduler.finish(each)
    each.finish(None)


def ids(requests: Sequence[Request]) -> list[str]:
    return [each.id for each in requests]
