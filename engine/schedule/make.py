"""Construction of the scheduler from a configuration."""

from orcastream.engine.config import EngineConfig
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.schedule.budget import AdaptiveBudget, TokenBudget
from orcastream.engine.schedule.memory import MEMORY_RULES
from orcastream.engine.schedule.policies import POLICIES, PolicyTools
from orcastream.engine.schedule.pool import RequestPool
from orcastream.engine.schedule.preemption import PreemptionChoice
from orcastream.engine.schedule.scheduler import Scheduler
from orcastream.engine.schedule.timing import IterationTimes


def make_scheduler(config: EngineConfig, requests: RequestPool, cache: KVCache) -> Scheduler:
    """Return a scheduler with the policy, memory rule, token budget and kind of preemption that `config` names."""
    times = IterationTimes()
    tools = PolicyTools(
        memory=MEMORY_RULES[config.admission](cache),
        budget=_make_budget(config, times),
        max_batch_size=config.num_places,
        class_weight=config.class_weight,
        times=times,
        preemption=PreemptionChoice(config.preemption, times),
    )
    return Scheduler(requests, cache, POLICIES[config.policy](tools), max_batch_size=config.num_places)


def _make_budget(config: EngineConfig, times: IterationTimes) -> TokenBudget:
    if config.token_budget == "fixed":
        return TokenBudget(config.token_budget_tokens)
    return AdaptiveBudget(
        config.token_budget_tokens, block_size=config.block_size, times=times, target_ms=config.tbt_target_ms
    )
