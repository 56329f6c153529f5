"""The scheduler that a configuration asks for."""

from engine.config import EngineConfig
from engine.kv.cache import KVCache
from engine.schedule.budget import AdaptiveBudget, TokenBudget
from engine.schedule.memory import MEMORY_RULES
from engine.schedule.policies import POLICIES, PolicyTools
from engine.schedule.pool import RequestPool
from engine.schedule.preemption import PreemptionChoice
from engine.schedule.scheduler import Scheduler
from engine.schedule.timing import IterationTimes


def make_scheduler(config: EngineConfig, requests: RequestPool, cache: KVCache) -> Scheduler:
    """Policy, memory rule, token budget and kind of preemption by their names in `config`."""
    times = IterationTimes()
    tools = PolicyTools(
        memory=MEMORY_RULES[config.admission](cache),
        budget=_make_budget(config, times),
        max_batch_size=config.max_batch_size,
        class_weight=config.class_weight,
        times=times,
        preemption=PreemptionChoice(config.preemption, times),
    )
    return Scheduler(requests, cache, POLICIES[config.policy](tools), max_batch_size=config.max_batch_size)


def _make_budget(config: EngineConfig, times: IterationTimes) -> TokenBudget:
    if config.token_budget == "fixed":
        return TokenBudget(config.max_num_batched_tokens)
    return AdaptiveBudget(
        config.max_num_batched_tokens, block_size=config.block_size, times=times, target_ms=config.tbt_target_ms
    )
