"""Redis as the service meets it, and the workers' hold on their requests."""

from typing import Final

from orcastream.telemetry.dashboards.dashboard import Dashboard, Row
from orcastream.telemetry.dashboards.panel import Line, Panel, quantiles
from orcastream.telemetry.dashboards.promql import MODEL, PROCESS, agreed, now, occurred, quantile, rate, total

_ROUNDTRIP: Final = "orcastream_redis_roundtrip_duration_seconds"
_COMMANDS: Final = "orcastream_redis_commands_total"
_TOKENS_OUT: Final = f'{PROCESS}, gen_ai_token_type="output"'


def _counted(metric: str) -> str:
    """Growth of a counter of the server's, which every gateway reports alike."""
    return f"max(increase({metric}{{{PROCESS}}}[$__rate_interval]))"


_REDIS: Final = Row(
    "Redis",
    (
        Panel(
            "Round trip",
            "One write to Redis until its last reply, blocking reads left out. More than a few milliseconds: the "
            "network, or a server that is busy or waits for its disk.",
            "s",
            quantiles(_ROUNDTRIP, PROCESS),
        ),
        Panel(
            "Round trip per process, p95",
            "One slow line among others is a matter of that host.",
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
            "What a token costs Redis. It falls as batches grow, since one write serves a whole iteration.",
            "short",
            (
                Line(
                    f"{total(rate(_COMMANDS, PROCESS))} / {total(rate('orcastream_tokens_total', _TOKENS_OUT))}",
                    "commands",
                ),
            ),
        ),
        Panel(
            "Writes in flight",
            "Mean number of round trips under way at once, per job.",
            "short",
            (Line(total(rate(f"{_ROUNDTRIP}_sum", PROCESS), "job"), "{{job}}"),),
        ),
        Panel(
            "Connections lost",
            "Connections to Redis that broke, per interval and process. Each ends epochs; nothing is lost.",
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
            "Of maxmemory, beyond which Redis takes no writes: accepted requests wait, new ones get 503. Nothing is "
            "shown where there is no limit: set one.",
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
            "Used by the server, and its maxmemory.",
            "bytes",
            (
                Line(f"max({now('orcastream_redis_memory_used_bytes', PROCESS)})", "used"),
                Line(f"max({now('orcastream_redis_memory_limit_bytes', PROCESS)})", "maxmemory"),
            ),
        ),
        Panel(
            "Append-only file",
            "1 while the last write succeeded. At 0 the disk is full or broken, and Redis takes no writes.",
            "short",
            (Line(f"min({now('orcastream_redis_aof_writable', PROCESS)})", "writable"),),
            top=1,
        ),
        Panel(
            "Replicas",
            "Replicas in step with the server.",
            "short",
            (Line(f"max({now('orcastream_redis_replicas', PROCESS)})", "replicas"),),
        ),
        Panel(
            "Replication lag",
            "How far the slowest replica is behind: what a failover now would lose.",
            "bytes",
            (Line(f"max({now('orcastream_redis_replication_lag_bytes', PROCESS)})", "behind"),),
        ),
        Panel(
            "Refused, evicted, slow",
            "Per interval: connections beyond maxclients, keys deleted for want of memory (each may be a lost reply), "
            "commands slower than the server's slowlog-log-slower-than.",
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
            "Leases renewed per second, and leases found lost. Lost ones: a worker was away for longer than a lease.",
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
            "Requests continued from another worker's log, per interval and by the worker that took them over: after a "
            "crash, or handed over by a worker that drains.",
            "short",
            (Line(total(occurred("orcastream_takeovers_total", MODEL), "instance"), "{{instance}}"),),
            stacked=True,
        ),
        Panel(
            "Fencing refusals",
            "Writes that Redis refused because a newer epoch stands in the log: a worker that was thought dead came "
            "back. This is the protection at work, and no harm was done.",
            "short",
            (Line(total(occurred("orcastream_fencing_refusals_total", MODEL), "instance"), "{{instance}}"),),
        ),
        Panel(
            "Dead letters",
            "Requests set aside per interval, by the worker that did it.",
            "short",
            (Line(total(occurred("orcastream_dead_letters_total", MODEL), "instance"), "{{instance}}"),),
        ),
        Panel(
            "Refusals by the workers and gateways",
            "Requests refused per second, by error code and job: over HTTP by gateways, straight from the stream by "
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
            "Requests that each worker holds a lease of.",
            "short",
            (Line(total(now("orcastream_worker_requests", MODEL), "instance"), "{{instance}}"),),
            stacked=True,
        ),
        Panel(
            "Share of the capacity in use",
            "Claimed requests of the most that a worker runs at once. All at 100 % while the queue grows: more workers "
            "are needed.",
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
            "Workers that live, by the state that they report.",
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
    "Redis as the service meets it and as it describes itself, and the workers' hold on their requests.",
    (_REDIS, _SERVER, _LEASES, _WORKERS),
)
