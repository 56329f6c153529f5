"""Checks on the running Compose project: each step returns a line with its result, or raises Failed."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from orcastream.demo.prompts import LONG_COUNT
from tests.compose.engine import docker
from tests.compose.stack import Stack
from tests.path.stream import Stream

PROMPT, ANSWER = LONG_COUNT
BODY = {"model": "orca-demo", "prompt": PROMPT, "max_tokens": 2000, "temperature": 0, "timeout": 300}
MIDDLE = 40
"""Number of the chunk at which something happens."""
LEASE_S = 5.0


class Failed(Exception):
    """An expectation was not met."""


def check(holds: bool, otherwise: str) -> None:
    """Raise Failed with `otherwise` unless the condition holds."""
    if not holds:
        raise Failed(otherwise)


@dataclass
class TimedStream(Stream):
    """A stream that records when its chunks arrived."""

    at_s: list[float] = field(default_factory=list)

    def _chunk(self, chunk: dict[str, Any]) -> None:
        self.at_s.append(time.monotonic())
        super()._chunk(chunk)

    @property
    def longest_pause_s(self) -> float:
        """Return the longest time between two chunks."""
        return max(later - earlier for earlier, later in zip(self.at_s, self.at_s[1:], strict=False))


class Steps:
    """Steps on one stack, in the order of their definition."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._finished = Stream()

    def gateway_and_worker_start_with_redis_alone(self) -> str:
        """`docker compose up gateway worker`."""
        self._stack.up("gateway", "worker")
        services = self._stack.services()
        check(services == {"gateway", "worker", "redis"}, f"up gateway worker: got {sorted(services)}")
        workers = self._stack.containers("worker")
        check(len(workers) == 2, f"workers: got {len(workers)}, allowed: 2")
        return "`up gateway worker` started these two, two containers of worker, and Redis; all are healthy"

    def containers_run_with_few_rights(self) -> str:
        """According to docker inspect, and to the processes themselves."""
        for service in ("redis", "gateway", "worker"):
            for container in self._stack.containers(service):
                [told] = json.loads(docker("inspect", container))
                host = told["HostConfig"]
                check(host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"], f"{service}: {host['CapDrop']}")
                check(host["SecurityOpt"] == ["no-new-privileges:true"], f"{service}: {host['SecurityOpt']}")
                user = docker("exec", container, "id", "-u")
                check(user == ("999" if service == "redis" else "10001"), f"{service}: runs as user {user}")
        [gateway] = self._stack.containers("gateway")
        program = "import importlib.util as u; print(u.find_spec('torch'))"
        check(docker("exec", gateway, "python3", "-c", program) == "None", "the gateway has torch")
        for service in ("gateway", "worker"):
            names = "('c++', 'g++', 'gcc', 'cc', 'clang')"
            program = f"import shutil; print([name for name in {names} if shutil.which(name)])"
            found = docker("exec", self._stack.containers(service)[0], "python3", "-c", program)
            check(found == "[]", f"{service}: has compilers: {found}")
        program = "from orcastream.engine.native.library import why_unavailable; print(why_unavailable())"
        why = docker("exec", self._stack.containers("worker")[0], "python3", "-c", program)
        check(why == "None", f"worker: no compiled operators: {why}")
        [redis] = self._stack.containers("redis")
        policy = docker("exec", redis, "redis-cli", "CONFIG", "GET", "maxmemory-policy").split()[-1]
        check(policy == "noeviction", f"maxmemory-policy: got {policy}, allowed: noeviction")
        return (
            "no root, no capability, read-only root file system; no torch in the gateway; the worker loads the CPU "
            "operators; no compiler; Redis evicts nothing"
        )

    def completion(self) -> str:
        """Get one answer of the demo model through the published port."""
        body = {"model": "orca-demo", "messages": [{"role": "user", "content": "What is 7 + 5?"}], "temperature": 0}
        response = httpx.post(f"{self._stack.url}/v1/chat/completions", json=body, timeout=60)
        check(response.status_code == 200, f"completion: {response.status_code} {response.text}")
        text = response.json()["choices"][0]["message"]["content"].strip()
        check(text == "12", f"completion: got {text!r}, allowed: '12'")
        return "7 + 5 is 12"

    def streaming(self) -> str:
        """Stream a long answer, undisturbed."""
        stream = TimedStream()
        begun_s = time.monotonic()
        self._undisturbed(stream.post(self._stack.url, BODY, {}))
        check(len(set(stream.workers)) == 1, f"workers: got {stream.workers}")
        self._finished = stream
        return (
            f"{len(stream.text)} characters in {stream.chunks} chunks, the first after {stream.at_s[0] - begun_s:.2f} s"
        )

    def worker_killed_in_mid_stream(self) -> str:
        """Send SIGKILL to the container that computes the answer."""
        stream = TimedStream()
        killed: list[str] = []

        def kill(stream: Stream) -> None:
            killed.append(self._container(stream.workers[-1]))
            docker("kill", "--signal", "KILL", killed[0])

        self._undisturbed(stream.post(self._stack.url, BODY, {MIDDLE: kill}))
        check(len(set(stream.workers)) == 2, f"workers: got {stream.workers}, allowed: two different ones")
        check(killed[0] not in self._stack.containers("worker"), "the worker that was killed still runs")
        self._stack.up("gateway", "worker")
        return (
            f"container {killed[0][:12]} killed at chunk {MIDDLE}; the text is unchanged, "
            f"its longest pause {stream.longest_pause_s:.1f} s (lease: {LEASE_S:.0f} s)"
        )

    def worker_stopped_in_mid_stream(self) -> str:
        """`docker stop`, with the container's grace period; the drain time is too short for the answer to end."""
        stream = TimedStream()
        stopped: list[str] = []
        with ThreadPoolExecutor(1) as aside:

            def stop(stream: Stream) -> None:
                stopped.append(self._container(stream.workers[-1]))
                aside.submit(docker, "stop", stopped[0])

            self._undisturbed(stream.post(self._stack.url, BODY, {MIDDLE: stop}))
        check(len(set(stream.workers)) == 2, f"workers: got {stream.workers}, allowed: two different ones")
        [told] = json.loads(docker("inspect", stopped[0]))
        status, grace_s = told["State"]["ExitCode"], told["Config"]["StopTimeout"]
        check(status == 0, f"the worker that was stopped exited with {status}")
        self._stack.up("gateway", "worker")
        return (
            f"container {stopped[0][:12]} stopped at chunk {MIDDLE} and exited with 0 within its {grace_s} s; "
            f"the text is unchanged, its longest pause {stream.longest_pause_s:.1f} s"
        )

    def restart_keeps_data(self) -> str:
        """`docker compose restart`: an answer that has ended before can still be read, and new ones are computed."""
        self._stack.compose("restart")
        self._stack.up("gateway", "worker")
        again = Stream(request_id=self._finished.request_id)
        self._undisturbed(again.resume(self._stack.url))
        self.completion()
        return "after `docker compose restart` the stream from before is read again, and new requests are served"

    def queued_request_outlives_everything(self) -> str:
        """Accepted while no worker runs; Redis is killed, everything is stopped; then it is served."""
        self._stack.compose("stop", "worker")
        request_id = self._enqueue()
        [redis] = self._stack.containers("redis")
        docker("kill", "--signal", "KILL", redis)
        self._stack.compose("stop")
        check(self._stack.services() == set(), f"after stop: {self._stack.services()} run")
        self._stack.up("gateway", "worker")
        self._undisturbed(Stream(request_id=request_id).resume(self._stack.url))
        return "queued without workers, Redis killed with SIGKILL, everything stopped and started: answered in full"

    def collector(self) -> str:
        """The collector accepts its configuration, and reports that it is healthy."""
        self._stack.up("collector")
        return "healthy"

    def whole_service(self) -> str:
        """`docker compose up`: dashboards exist, and metrics arrive."""
        self._stack.up()
        services = self._stack.services()
        check(services == {"redis", "gateway", "worker", "collector", "grafana"}, f"up: got {sorted(services)}")
        self.completion()
        grafana = f"http://127.0.0.1:{self._stack.grafana_port}"
        found = httpx.get(f"{grafana}/api/search?type=dash-db&tag=orcastream", timeout=30).json()
        check(len(found) >= 3, f"dashboards: got {found}")
        query = f"{grafana}/api/datasources/proxy/uid/prometheus/api/v1/label/__name__/values"
        give_up_s = time.monotonic() + 120
        names: list[str] = []
        while not any(name.startswith("gen_ai_server_") for name in names):
            check(time.monotonic() < give_up_s, f"metrics: got {names}")
            names = httpx.get(query, timeout=30).json().get("data", [])
            time.sleep(1)
        return f"`up` started {', '.join(sorted(services))}; {len(found)} dashboards, {len(names)} metrics"

    def load(self) -> str:
        """The profile `load`, for some seconds."""
        self._stack.give("LOAD_DURATION_S", "10")
        begun = self._stack.compose("--profile", "load", "run", "--rm", "--no-deps", "load", timeout_s=300)
        [line] = [line for line in begun.splitlines() if " complete" in line][:1]
        return "profile load, 8 clients for 10 s: " + line.strip(" │|")

    def everything_stops_in_time(self) -> str:
        """`docker compose stop`: no process needs to be killed."""
        containers = {name: self._stack.containers(name) for name in ("gateway", "worker", "redis")}
        self._stack.compose("stop")
        for name, ids in containers.items():
            for container in ids:
                status = docker("inspect", "--format", "{{.State.ExitCode}}", container)
                check(status == "0", f"{name}: exited with {status}")
        return "`docker compose stop`: every process exited with 0"

    def _enqueue(self) -> str:
        """Have a request accepted whose client leaves at once; return its id."""
        body = {**BODY, "stream": True, "on_disconnect": "continue"}
        with httpx.stream("POST", f"{self._stack.url}/v1/completions", json=body, timeout=60) as response:
            check(response.status_code == 200, f"enqueue: {response.status_code}")
            return str(response.headers["x-request-id"])

    def _container(self, worker: str) -> str:
        """Return the container of a worker from its name: host, pid, random."""
        host = worker.split("-")[0]
        [found] = [container for container in self._stack.containers("worker") if container.startswith(host)]
        return found

    def _undisturbed(self, stream: Stream) -> None:
        check(stream.error is None, f"the stream ended with {stream.error}")
        check(stream.text.strip() == ANSWER, f"text: got {stream.text!r}")
        check(stream.done and stream.finish_reason == "stop", f"the stream ended with {stream.finish_reason}")
