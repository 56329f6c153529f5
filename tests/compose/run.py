"""`make compose-test`: all of docker-compose.yml on a real engine, step by step; the output is the record.

Unavailable images are left out by name, except Redis, which is then built from the base image. The base image and
mirrors are given as for any build: BASE_IMAGE=... make compose-test.
"""

import os
import sys
import time
from collections.abc import Callable

from tests.compose.engine import BUILD_TIMEOUT_S, EngineError, docker, engine_version, obtain, size_mb
from tests.compose.stack import PROJECT, Stack
from tests.compose.steps import Failed, Steps

OWN_REDIS = f"{PROJECT}-redis"
OPTIONAL = ("collector", "grafana")


def main() -> int:
    """Run every step; return 0 if all succeed, 1 if one fails, 2 if there is no engine."""
    try:
        say("engine", engine_version())
    except EngineError as error:
        print(f"compose-test: no container engine: {error}", file=sys.stderr)
        return 2
    stack = Stack()
    try:
        images(stack)
        skipped = [name for name in OPTIONAL if not available(stack, name)]
    except EngineError as error:
        print(f"compose-test: FAILED: images: {error}", file=sys.stderr)
        return 1
    stack.down()
    try:
        run(Steps(stack), skipped)
    except (EngineError, Failed) as error:
        print(f"compose-test: FAILED: {error}", file=sys.stderr)
        print(stack.compose("--ansi", "never", "logs", "--tail", "60"), file=sys.stderr)
        return 1
    finally:
        stack.down()
    print("compose-test: every step holds" + (f"; skipped: {', '.join(skipped)}" if skipped else ""))
    return 0


def say(step: str, what: str) -> None:
    """Print one line of the record."""
    print(f"{step:<10} {what}", flush=True)


def images(stack: Stack) -> None:
    """Obtain an image of Redis, and build the project's images."""
    redis = stack.config()["redis"]["image"]
    why = obtain(redis)
    if why is None:
        say("redis", redis)
    else:
        base = stack.config()["gateway"]["build"]
        arguments = [f"--build-arg={name}={base['args'][name]}" for name in ("BASE_IMAGE", "APT_MIRROR")]
        file = "tests/compose/redis.Dockerfile"
        docker(
            "build", "--quiet", f"--network={base['network']}", *arguments, f"--file={file}", f"--tag={OWN_REDIS}",
            "tests/compose", timeout_s=BUILD_TIMEOUT_S,
        )  # fmt: skip
        stack.give("REDIS_IMAGE", OWN_REDIS)
        version = docker("run", "--rm", OWN_REDIS, "redis-server", "--version").split(" sha=")[0]
        say("redis", f"{redis} cannot be had ({why}); built from {base['args']['BASE_IMAGE']}: {version}")
    begun_s = time.monotonic()
    builder = "classic builder" if os.environ.get("DOCKER_BUILDKIT") == "0" else "the engine's builder"
    stack.build("gateway", "worker")
    services = stack.config()
    sizes = (f"{services[name]['image']} {size_mb(services[name]['image'])} MB" for name in ("gateway", "worker"))
    say("build", f"{', '.join(sizes)}; {builder}, {time.monotonic() - begun_s:.0f} s with what was cached")


def available(stack: Stack, service: str) -> bool:
    """Return whether the image of a service can be obtained; print a line if it cannot."""
    image = stack.config()[service]["image"]
    why = obtain(image)
    if why is not None:
        say("SKIPPED", f"{service}: {image} cannot be had ({why})")
    return why is None


def run(steps: Steps, skipped: list[str]) -> None:
    """Run the steps, and print the result of each."""
    telemetry: list[tuple[str, Callable[[], str]]] = [
        *([] if "collector" in skipped else [("collector", steps.collector)]),
        *([] if skipped else [("grafana", steps.whole_service)]),
    ]
    for name, step in [
        ("up", steps.gateway_and_worker_start_with_redis_alone),
        ("rights", steps.containers_run_with_few_rights),
        ("complete", steps.completion),
        ("stream", steps.streaming),
        ("kill", steps.worker_killed_in_mid_stream),
        ("stop", steps.worker_stopped_in_mid_stream),
        ("restart", steps.restart_keeps_data),
        ("queue", steps.queued_request_outlives_everything),
        *telemetry,
        ("load", steps.load),
        ("down", steps.everything_stops_in_time),
    ]:
        begun_s = time.monotonic()
        found = step()
        say(name, f"{found} [{time.monotonic() - begun_s:.1f} s]")


if __name__ == "__main__":
    sys.exit(main())
