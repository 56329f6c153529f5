"""The scheduler that a configuration asks for."""

from engine.config import EngineConfig
from engine.kv.cache import KVCache
from engine.schedule.budget import TokenBudget
from engine.schedule.memory import MEMORY_RULES
from engine.schedule.policies import POLICIES, PolicyTools
from engine.schedule.pool import RequestPool
from engine.schedule.scheduler import Scheduler


def make_scheduler(config: EngineConfig, requests: RequestPool, cache: KVCache) -> Scheduler:
    """Policy, memory rule and token budget by their names in `config`."""
    tools = PolicyTools(
        memory=MEMORY_RULES[config.admission](cache),
        budget=TokenBudget(config.max_num_batched_tokens),
        max_batch_size=config.max_batch_size,
        class_weight=config.class_weight,
    )
    return Scheduler(requests, cache, POLICIES[config.policy](tools), max_batch_size=config.max_batch_size)
