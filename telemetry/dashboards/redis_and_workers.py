"""Dashboard of Redis as the service sees it, and of the workers' leases on their requests."""

from typing import Final

from orcastream.telemetry.dashboards.dashboard import Dashboard, Row
from orcastream.telemetry.dashboards.panel import Line, Panel, quantiles
from orcastream.telemetry.dashboards.promql import (
    MODEL,
    PROCESS,
    agreed,
    now,
    occurred,
    occurred_since,
    quantile,
    rate,
    total,
)

_ROUNDTRIP: Final = "orcastream_redis_roundtrip_duration_seconds"
_COMMANDS: Final = "orcastream_redis_commands_total"
_TOKENS_OUT: Final = f'{PROCESS}, gen_ai_token_type="output"'


def _counted(metric: str) -> str:
    """Return the growth of a counter of the server within the last four intervals; every gateway reports the same."""
    return f"max({occurred_since(metric, PROCESS)})"


_REDIS: Final = Row(
    "Redis",
    (
        Panel(
            "Round trip",
            "From a write to Redis to its last reply, without blocking reads. More than a few milliseconds: the "
            "network, or a server that is busy or waiting for its disk.",
            "s",
            quantiles(_ROUNDTRIP, PROCESS),
        ),
        Panel(
            "Round trip per process, p95",
            "A single slow line points to that host.",
            "s",
            (Line(quantile(0.95, _ROUNDTRIP, PROCESS, "instance"), "{{instance}}"),),
        ),
        Panel(
            "Commands",
            "Commands sent per second, by job.",
            "ops",
            (Line(total(rate(_COMMANDS, PROCESS), "job"), "{{job}}"),),
            stacked=True,
        ),
        Panel(
            "Commands per output token",
            "Cost of a token for Redis. It falls as batches grow, because one write serves a whole iteration. Empty "
            "while no token is sampled.",
            "short",
            (
                Line(
                    f"{total(rate(_COMMANDS, PROCESS))} / ({total(rate('orcastream_tokens_total', _TOKENS_OUT))} > 0)",
                    "commands",
                ),
            ),
        ),
        Panel(
            "Writes in flight",
            "Mean number of round trips in progress at once, per job.",
            "short",
            (Line(total(rate(f"{_ROUNDTRIP}_sum", PROCESS), "job"), "{{job}}"),),
        ),
        Panel(
            "Connections lost",
            "Broken connections to Redis in the last four intervals, per process. Each ends epochs; nothing is lost.",
            "short",
            (Line(total(occurred("orcastream_redis_connections_lost_total", PROCESS), "instance"), "{{instance}}"),),
        ),
    ),
)

_SERVER: Final = Row(
    "The Redis server",
    (
        Panel(
            "Memory in use",
            "Share of maxmemory, beyond which Redis accepts no writes: accepted requests wait, new ones get 503. Empty "
            "if there is no limit: set one.",
            "percentunit",
            (
                Line(
                    f"max({now('orcastream_redis_memory_used_bytes', PROCESS)} / "
                    f"{now('orcastream_redis_memory_limit_bytes', PROCESS)})",
                    "in use",
                ),
            ),
            top=1,
            warn_from=0.85,
        ),
        Panel(
            "Memory",
            "Memory used by the server, and its maxmemory.",
            "bytes",
            (
                Line(f"max({now('orcastream_redis_memory_used_bytes', PROCESS)})", "used"),
                Line(f"max({now('orcastream_redis_memory_limit_bytes', PROCESS)})", "maxmemory"),
            ),
        ),
        Panel(
            "Append-only file",
            "1 if the last write succeeded. At 0 the disk is full or broken, and Redis accepts no writes.",
            "short",
            (Line(f"min({now('orcastream_redis_aof_writable', PROCESS)})", "writable"),),
            top=1,
        ),
        Panel(
            "Replicas",
            "Replicas in sync with the server.",
            "short",
            (Line(f"max({now('orcastream_redis_replicas', PROCESS)})", "replicas"),),
        ),
        Panel(
            "Replication lag",
            "How far the slowest replica lags behind: the data that a failover now would lose.",
            "bytes",
            (Line(f"max({now('orcastream_redis_replication_lag_bytes', PROCESS)})", "behind"),),
        ),
        Panel(
            "Refused, evicted, slow",
            "In the last four intervals: connections beyond maxclients, keys evicted for lack of memory (each may be a "
            "lost reply), commands slower than the server's slowlog-log-slower-than.",
            "short",
            (
                Line(_counted("orcastream_redis_connections_rejected_total"), "connections rejected"),
                Line(_counted("orcastream_redis_keys_evicted_total"), "keys evicted"),
                Line(_counted("orcastream_redis_commands_slow_total"), "slow commands"),
            ),
        ),
    ),
)

_LEASES: Final = Row(
    "Leases",
    (
        Panel(
            "Lease renewals",
            "Leases renewed per second, and leases found lost: a worker was unresponsive for longer than a lease.",
            "ops",
            (
                Line(
                    total(rate("orcastream_lease_renewals_total", MODEL), "orcastream_outcome"),
                    "{{orcastream_outcome}}",
                ),
            ),
        ),
        Panel(
            "Takeovers",
            "Requests continued from another worker's log in the last four intervals, by the worker that took them "
            "over: after a crash, or handed over by a draining worker.",
            "short",
            (Line(total(occurred("orcastream_takeovers_total", MODEL), "instance"), "{{instance}}"),),
            stacked=True,
        ),
        Panel(
            "Fencing refusals",
            "Writes that Redis refused because the log has a newer epoch: a worker that was considered dead returned. "
            "The fence did its job, and no harm was done.",
            "short",
            (Line(total(occurred("orcastream_fencing_refusals_total", MODEL), "instance"), "{{instance}}"),),
        ),
        Panel(
            "Dead letters",
            "Requests set aside in the last four intervals, by the process that set them aside.",
            "short",
            (Line(total(occurred("orcastream_dead_letters_total", MODEL), "instance"), "{{instance}}"),),
        ),
        Panel(
            "Refusals by the workers and gateways",
            "Requests refused per second, by error code and job: over HTTP by gateways, directly from the stream by "
            "workers.",
            "reqps",
            (
                Line(
                    total(rate("orcastream_admission_refusals_total", MODEL), "error_type", "job"),
                    "{{job}} {{error_type}}",
                ),
            ),
        ),
    ),
)

_WORKERS: Final = Row(
    "Workers",
    (
        Panel(
            "Requests claimed per worker",
            "Requests on which each worker holds a lease.",
            "short",
            (Line(total(now("orcastream_worker_requests", MODEL), "instance"), "{{instance}}"),),
            stacked=True,
        ),
        Panel(
            "Share of the capacity in use",
            "Claimed requests as a share of the worker's maximum. All at 100 % while the queue grows: add workers.",
            "percentunit",
            (
                Line(
                    f"{total(now('orcastream_worker_requests', MODEL), 'instance')} / "
                    f"{total(now('orcastream_worker_capacity', MODEL), 'instance')}",
                    "{{instance}}",
                ),
            ),
            top=1,
        ),
        Panel(
            "Workers by state",
            "Live workers, by reported state.",
            "short",
            (
                Line(
                    agreed("orcastream_workers", MODEL, "gen_ai_request_model", "orcastream_state"),
                    "{{gen_ai_request_model}} {{orcastream_state}}",
                ),
            ),
            stacked=True,
        ),
    ),
)

REDIS_AND_WORKERS: Final = Dashboard(
    "orcastream-redis",
    "Orcastream: Redis and workers",
    "Redis as the service sees it and as it reports itself, and the workers' leases on their requests.",
    (_REDIS, _SERVER, _LEASES, _WORKERS),
)
