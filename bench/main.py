"""`orcastream bench`: its sub-commands, each loaded when it is asked for."""

from collections.abc import Sequence

from orcastream.cli.command import Command, overview, run_command

PROGRAM = "orcastream bench"
COMMANDS = {
    "offline": Command(
        "the engine alone: policies and settings against each other", "orcastream.bench.offline.command", "worker"
    ),
    "gpu": Command(
        "a GPU: kernels checked and measured, the engine beside transformers", "orcastream.bench.gpu.command", "worker"
    ),
    "serve": Command(
        "a gateway over HTTP: open loop, closed loop, sweeps", "orcastream.bench.serve.command", "gateway"
    ),
    "overload": Command(
        "several times the capacity: who is served in time",
        "orcastream.bench.overload.command",
        "gateway,worker,embedded",
    ),
    "peers": Command("the engine beside other engines, in one run", "orcastream.bench.peers.command", "worker"),
    "workloads": Command("the workloads and what they are", "orcastream.bench.workloads.command"),
    "make-model": Command("a model of a given shape with random weights", "orcastream.bench.make_model", "worker"),
    "kv-memory": Command("the KV cache that a model needs per token", "orcastream.bench.kv_memory", "worker"),
    "redis-enqueue": Command("what it costs Redis to take a request in", "orcastream.bench.redis.enqueuing", "gateway"),
    "redis-memory": Command("what requests and replies take in Redis", "orcastream.bench.redis.memory", "gateway"),
    "redis-rate": Command("how many tokens one Redis carries", "orcastream.bench.redis.rate", "gateway"),
    "path": Command(
        "the path around the engine: per token and per request", "orcastream.bench.path.command", "gateway,worker"
    ),
    "autoscale": Command(
        "autoscaling shown on this machine", "orcastream.bench.autoscaling.command", "gateway,worker,embedded"
    ),
    "soak": Command(
        "an hour under steady load: what grows", "orcastream.bench.soak.command", "gateway,worker,embedded"
    ),
    "console-cost": Command(
        "what it costs a worker to be watched", "orcastream.bench.console_cost", "gateway,worker,embedded"
    ),
    "telemetry-cost": Command("what telemetry costs", "orcastream.bench.telemetry.cost", "gateway,worker,embedded"),
}


def main(arguments: Sequence[str]) -> int:
    """Run one of them; returns the exit code."""
    name, *rest = list(arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(_overview())
        return 0
    return run_command(PROGRAM, COMMANDS, name, rest)


def _overview() -> str:
    return (
        f"usage: {PROGRAM} COMMAND [--help] [FLAGS]\n\n"
        "Benchmarks that print where and with what they measured; the same seed asks for the same.\n\n"
        f"commands:\n{overview(COMMANDS)}"
    )
