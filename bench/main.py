"""`orcastream bench`: its sub-commands, each loaded on demand."""

from collections.abc import Sequence

from orcastream.cli.command import Command, overview, run_command
from orcastream.cli.interruption import interrupt_on_stop

PROGRAM = "orcastream bench"
COMMANDS = {
    "offline": Command(
        "measure the engine alone: compare policies and settings", "orcastream.bench.offline.command", "worker"
    ),
    "gpu": Command(
        "on a GPU: check and measure kernels, compare the engine with transformers",
        "orcastream.bench.gpu.command",
        "worker",
    ),
    "serve": Command(
        "load a gateway over HTTP: open loop, closed loop, sweeps", "orcastream.bench.serve.command", "gateway"
    ),
    "overload": Command(
        "overload a service, and measure which requests are served in time",
        "orcastream.bench.overload.command",
        "gateway,worker,embedded",
    ),
    "peers": Command("compare the engine with other engines in one run", "orcastream.bench.peers.command", "worker"),
    "workloads": Command("describe the workloads", "orcastream.bench.workloads.command"),
    "make-model": Command(
        "write a model of a given shape with random weights", "orcastream.bench.make_model", "worker"
    ),
    "kv-memory": Command("print the KV cache that a model needs per token", "orcastream.bench.kv_memory", "worker"),
    "redis-enqueue": Command(
        "measure Redis's cost of accepting a request", "orcastream.bench.redis.enqueuing", "gateway"
    ),
    "redis-memory": Command(
        "measure Redis's memory for requests and replies", "orcastream.bench.redis.memory", "gateway"
    ),
    "redis-rate": Command(
        "measure the tokens per second that one Redis can carry", "orcastream.bench.redis.rate", "gateway"
    ),
    "path": Command(
        "measure the overhead around the engine, per token and per request",
        "orcastream.bench.path.command",
        "gateway,worker",
    ),
    "autoscale": Command(
        "demonstrate autoscaling on this machine", "orcastream.bench.autoscaling.command", "gateway,worker,embedded"
    ),
    "soak": Command(
        "run an hour of steady load, and check that nothing grows",
        "orcastream.bench.soak.command",
        "gateway,worker,embedded",
    ),
    "console-cost": Command(
        "measure what being watched by the console costs a worker",
        "orcastream.bench.console_cost",
        "gateway,worker,embedded",
    ),
    "telemetry-cost": Command(
        "measure the cost of telemetry", "orcastream.bench.telemetry.cost", "gateway,worker,embedded"
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run one of the benchmarks; return the exit code.

    SIGTERM and SIGHUP interrupt it like Ctrl-C, so that it ends its processes and removes its files.
    """
    name, *rest = list(arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(_overview())
        return 0
    interrupt_on_stop()
    return run_command(PROGRAM, COMMANDS, name, rest)


def _overview() -> str:
    return (
        f"usage: {PROGRAM} COMMAND [--help] [FLAGS]\n\n"
        "Benchmarks print the machine and settings they used; the same seed gives the same requests.\n\n"
        f"commands:\n{overview(COMMANDS)}"
    )
