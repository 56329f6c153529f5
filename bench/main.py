"""`orcastream bench`: its sub-commands, each loaded when it is asked for."""

from collections.abc import Sequence

from cli.command import Command, overview, run_command

PROGRAM = "orcastream bench"
COMMANDS = {
    "offline": Command("the engine alone: policies and settings against each other", "bench.offline.command", "worker"),
    "gpu": Command(
        "a GPU: kernels checked and measured, the engine beside transformers", "bench.gpu.command", "worker"
    ),
    "serve": Command("a gateway over HTTP: open loop, closed loop, sweeps", "bench.serve.command", "gateway"),
    "overload": Command(
        "several times the capacity: who is served in time", "bench.overload.command", "gateway,worker,embedded"
    ),
    "peers": Command("the engine beside other engines, in one run", "bench.peers.command", "worker"),
    "workloads": Command("the workloads and what they are", "bench.workloads.command"),
    "make-model": Command("a model of a given shape with random weights", "bench.make_model", "worker"),
    "kv-memory": Command("the KV cache that a model needs per token", "bench.kv_memory", "worker"),
    "redis-memory": Command("what requests and replies take in Redis", "bench.redis.memory", "gateway"),
    "redis-rate": Command("how many tokens one Redis carries", "bench.redis.rate", "gateway"),
    "path": Command("the path around the engine: per token and per request", "bench.path.command", "gateway,worker"),
    "autoscale": Command("autoscaling shown on this machine", "bench.autoscaling.command", "gateway,worker,embedded"),
    "soak": Command("an hour under steady load: what grows", "bench.soak.command", "gateway,worker,embedded"),
    "telemetry-cost": Command("what telemetry costs", "bench.telemetry.cost", "gateway,worker,embedded"),
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
