"""Inside the workers: iterations, batches, the KV cache."""

from typing import Final

from orcastream.telemetry.dashboards.dashboard import Dashboard, Row
from orcastream.telemetry.dashboards.panel import TOKENS_PER_SECOND, Line, Panel, quantiles
from orcastream.telemetry.dashboards.promql import MODEL, mean, now, or_nothing, quantile, rate, total

_ITERATION: Final = "orcastream_engine_iteration_duration_seconds"
_ITERATION_TOKENS: Final = "orcastream_engine_iteration_tokens"
_BLOCKS_IN_USE: Final = f'{MODEL}, orcastream_state="used"'


def _cache_in_use(*by: str) -> str:
    used, all_of_them = now("orcastream_kv_cache_blocks", _BLOCKS_IN_USE), now("orcastream_kv_cache_blocks", MODEL)
    return f"{total(used, *by)} / {total(all_of_them, *by)}"


def _requests(state: str, *by: str) -> str:
    return total(now("orcastream_engine_requests", f'{MODEL}, orcastream_state="{state}"'), *by)


def _per_iteration(metric: str, label: str) -> str:
    return f"{total(rate(metric, MODEL), label)} / scalar({total(rate(f'{_ITERATION}_count', MODEL))})"


_AT_A_GLANCE: Final = Row(
    "At a glance",
    (
        Panel(
            "Running",
            "Requests in the batches of the engines.",
            "short",
            (Line(or_nothing(_requests("running")), "running"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Waiting",
            "Claimed requests that wait for blocks or for room in the batch.",
            "short",
            (Line(or_nothing(_requests("waiting")), "waiting"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "KV cache in use",
            "Share of all blocks in use.",
            "percentunit",
            (Line(_cache_in_use(), "in use"),),
            kind="stat",
            width=4,
            top=1,
            warn_from=0.95,
        ),
        Panel(
            "Tokens per iteration",
            "Mean size of the flat batch.",
            "short",
            (Line(mean(_ITERATION_TOKENS, MODEL), "tokens"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Iteration, p95",
            "Time of one iteration, from select to advance: running requests get tokens at this pace.",
            "s",
            (Line(quantile(0.95, _ITERATION, MODEL), "p95"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Preemptions",
            "Requests preempted per second because blocks ran out. Each is recomputed.",
            "ops",
            (Line(total(rate("orcastream_engine_preemptions_total", MODEL)), "preemptions"),),
            kind="stat",
            width=4,
            warn_from=1,
        ),
    ),
)

_BATCH: Final = Row(
    "Batch",
    (
        Panel(
            "Tokens computed",
            "Tokens in the flat batches per second: prefill (including recomputed tokens) and decode.",
            TOKENS_PER_SECOND,
            (
                Line(
                    total(rate("orcastream_engine_batched_tokens_total", MODEL), "orcastream_phase"),
                    "{{orcastream_phase}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Tokens per iteration against the budget",
            "Size of the flat batches and its limit. At the budget for a long time: requests wait for prefill.",
            "short",
            (
                *quantiles(_ITERATION_TOKENS, MODEL)[:2],
                Line(mean(_ITERATION_TOKENS, MODEL), "mean"),
                Line(f"max({now('orcastream_engine_token_budget', MODEL)})", "budget"),
            ),
        ),
        Panel(
            "Composition of an iteration",
            "Mean number of prefill and decode tokens in one iteration.",
            "short",
            (
                Line(
                    _per_iteration("orcastream_engine_batched_tokens_total", "orcastream_phase"), "{{orcastream_phase}}"
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Requests in the pool",
            "Requests running (in the batch) and waiting in the engines.",
            "short",
            (Line(total(now("orcastream_engine_requests", MODEL), "orcastream_state"), "{{orcastream_state}}"),),
            stacked=True,
        ),
        Panel(
            "Requests running per worker",
            "How evenly the work is spread.",
            "short",
            (
                Line(
                    _requests("running", "instance"),
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Unpublished tokens",
            "Tokens delivered by the engine but not yet confirmed by Redis. At `max_unpublished` the engine pauses: "
            "Redis or the network to it is too slow.",
            "short",
            (Line(total(now("orcastream_engine_unpublished", MODEL), "instance"), "{{instance}}"),),
        ),
    ),
)

_ADAPTERS: Final = Row(
    "LoRA adapters",
    (
        Panel(
            "In memory",
            "Adapters in memory, per worker. At `max_adapters` each new one evicts another.",
            "short",
            (Line(total(now("orcastream_worker_adapters", MODEL), "instance"), "{{instance}}"),),
        ),
        Panel(
            "Loads and evictions",
            "Adapters loaded and evicted per second. Both high for long: more than `max_adapters` are in demand.",
            "ops",
            (
                Line(total(rate("orcastream_worker_adapter_loads_total", MODEL)), "loads"),
                Line(total(rate("orcastream_worker_adapter_evictions_total", MODEL)), "evictions"),
            ),
        ),
        Panel(
            "Requests waiting for an adapter",
            "Claimed requests whose adapter is being read, or has no slot yet.",
            "short",
            (Line(total(now("orcastream_worker_adapter_waits", MODEL), "instance"), "{{instance}}"),),
        ),
    ),
)

_CACHE: Final = Row(
    "KV cache",
    (
        Panel(
            "In use",
            "Share of blocks in use, per worker.",
            "percentunit",
            (Line(_cache_in_use("instance"), "{{instance}}"),),
            top=1,
            warn_from=0.95,
        ),
        Panel(
            "Blocks",
            "Blocks of all workers, used and free.",
            "short",
            (Line(total(now("orcastream_kv_cache_blocks", MODEL), "orcastream_state"), "{{orcastream_state}}"),),
            stacked=True,
        ),
        Panel(
            "Preemptions",
            "Requests returned to the pool per second because blocks ran out, per worker.",
            "ops",
            (
                Line(total(rate("orcastream_engine_preemptions_total", MODEL), "instance"), "{{instance}}"),
                Line(total(rate("orcastream_engine_swaps_total", MODEL)), "swapped to host memory, all workers"),
            ),
        ),
        Panel(
            "Prefix cache",
            "Prompt tokens of admitted requests per second, and those found in the cache, which need no computation.",
            "short",
            (
                Line(total(rate("orcastream_engine_prefix_cache_queries_total", MODEL)), "looked up"),
                Line(total(rate("orcastream_engine_prefix_cache_hits_total", MODEL)), "found"),
            ),
        ),
    ),
)

_ITERATIONS: Final = Row(
    "Iterations",
    (
        Panel(
            "Iteration time",
            "Time of one iteration, from select to advance.",
            "s",
            quantiles(_ITERATION, MODEL),
        ),
        Panel(
            "Iteration time by phase",
            "Mean time of each phase of an iteration. Publishing overlaps with the next iteration and delays none.",
            "s",
            (
                Line(
                    _per_iteration("orcastream_engine_phase_time_seconds_total", "orcastream_phase"),
                    "{{orcastream_phase}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Iterations per second",
            "Iterations per second and worker; 0 if the worker is idle or its engine is stuck.",
            "ops",
            (Line(total(rate(f"{_ITERATION}_count", MODEL), "instance"), "{{instance}}"),),
        ),
    ),
)

ENGINE: Final = Dashboard(
    "orcastream-engine",
    "Orcastream: engine",
    "Inside the workers: contents of the batches, use of the KV cache, time of an iteration.",
    (_AT_A_GLANCE, _BATCH, _CACHE, _ADAPTERS, _ITERATIONS),
)
