"""A bulk job while everything around it is killed, and its result.

    python -m tests.cli.jobs.bulk --lines 100000 --rounds 5

In each round `orcastream submit` itself, a worker, the gateway and Redis are killed and restarted, one after the other,
at equal intervals of results. Then the output is compared with the known answers of the demo model.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import redis

from orcastream.demo.counting import count
from orcastream.schemas.keys import Keys
from tests.parent import tied_to_parent
from tests.path.site import Site
from tests.redis_server import RedisServer, system_binary
from tests.worker.worker_process import MODEL

ROOT = Path(__file__).parents[3]
JOB = "bulk"


def questions(number: int, rng: random.Random) -> list[tuple[str, str]]:
    """Return a number of questions with their answers, of one to about sixty tokens."""
    found = []
    for _ in range(number):
        left, right = rng.randint(0, 20), rng.randint(0, 20)
        if rng.random() < 0.8:
            found.append((f"What is {left} + {right}?", str(left + right)))
        else:
            found.append((f"Count from {left} to {left + right + 1}", count(left, left + right + 1)))
    return found


@dataclass
class Outcome:
    """The content of the output: results, results of different lines, correct answers; and the course of the run."""

    lines: int
    results: int
    distinct: int
    right: int
    failed: int
    in_order: bool
    faults: dict[str, int]
    seconds: float


class BulkJob:
    """One job of `number` lines on its own server, with two workers and a gateway."""

    def __init__(self, server: RedisServer, directory: Path, number: int, *flags: str, seed: int = 1) -> None:
        self.site = Site(server, directory)
        self.input, self.output = directory / "input.jsonl", directory / "output.jsonl"
        self.asked = questions(number, random.Random(seed))
        self.faults = {"submit": 0, "worker": 0, "gateway": 0, "redis": 0}
        self._directory = directory
        self._flags = flags
        self._submit: subprocess.Popen[bytes] | None = None
        with self.input.open("w") as file:
            for at, (question, _) in enumerate(self.asked):
                body = {"messages": [{"role": "user", "content": question}], "temperature": 0}
                line = {"custom_id": f"c{at}", "method": "POST", "url": "/v1/chat/completions", "body": body}
                file.write(json.dumps(line) + "\n")

    def run(self, rounds: int) -> Outcome:
        """Kill everything in turn, `rounds` times, while results arrive; return the final content of the output."""
        began = time.monotonic()
        self.site.start(workers=2)
        self._start()
        faults: list[Callable[[], None]] = [self._kill_submit, self._kill_worker, self._kill_gateway, self._kill_redis]
        for number in range(rounds * len(faults)):
            self._wait_for(len(self.asked) * (number + 1) // (rounds * len(faults) + 1))
            faults[number % len(faults)]()
        assert self._submit is not None
        code = self._submit.wait()
        assert code == 0, self.log
        return self._outcome(time.monotonic() - began)

    def stop(self) -> None:
        """Leave nothing running."""
        if self._submit is not None:
            self._submit.kill()
            self._submit.wait()
        self.site.stop()

    @property
    def log(self) -> str:
        """What submit has printed, over all its restarts."""
        return (self._directory / "submit.log").read_text(errors="replace")

    def _start(self) -> None:
        command = [sys.executable, "-P", "-m", "orcastream.cli.main", "submit", str(self.input), "--job", JOB]
        where = ["--redis-url", self.site.server.url, "--served-model-name", MODEL, "--output", str(self.output)]
        with (self._directory / "submit.log").open("ab") as log:
            self._submit = subprocess.Popen(
                tied_to_parent([*command, *where, *self._flags]),
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait_for(self, results: int) -> None:
        """Wait until this number of lines has results."""
        key = Keys(MODEL).job(JOB)
        while True:
            assert self._submit is not None
            assert self._submit.poll() is None, self.log
            try:
                with self.site.server.client() as client:
                    found = client.hmget(key, "completed", "failed")
            except redis.RedisError:
                found = [None]
            if sum(int(value or 0) for value in found) >= results:
                return
            time.sleep(0.02)

    def _kill_submit(self) -> None:
        assert self._submit is not None
        self._submit.kill()
        self._submit.wait()
        self.faults["submit"] += 1
        self._start()

    def _kill_worker(self) -> None:
        self.site.replace_worker(next(iter(self.site.workers)))
        self.faults["worker"] += 1

    def _kill_gateway(self) -> None:
        self.site.gateways[0].kill()
        self.site.replace_gateway(self.site.gateways[0])
        self.faults["gateway"] += 1

    def _kill_redis(self) -> None:
        self.site.server.restart()
        self.faults["redis"] += 1

    def _outcome(self, seconds: float) -> Outcome:
        results = [json.loads(line) for line in self.output.read_text().splitlines()]
        answers = {f"c{at}": answer for at, (_, answer) in enumerate(self.asked)}
        said = [result for result in results if result["error"] is None]
        right = sum(answers[one["custom_id"]] == _text(one["response"]["body"]) for one in said)
        ids = [result["custom_id"] for result in results]
        in_order = ids == list(answers)
        failed = len(results) - len(said)
        return Outcome(len(answers), len(ids), len(set(ids)), right, failed, in_order, self.faults, seconds)


def _text(body: dict[str, list[dict[str, dict[str, str]]]]) -> str:
    return body["choices"][0]["message"]["content"].strip()


def main() -> None:
    """Print one line per fact; the exit code is 1 if a result is missing, duplicated or wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--aof", choices=["always", "everysec"], default="everysec")
    parser.add_argument("--ordered", action="store_true")
    asked = parser.parse_args()
    binary = system_binary()
    if binary is None:
        sys.exit("no redis-server on PATH")
    with tempfile.TemporaryDirectory(prefix="orcastream-bulk-") as folder:
        server = RedisServer(binary, Path(folder) / "redis", aof=asked.aof)
        server.start()
        job = BulkJob(server, Path(folder), asked.lines, *(["--ordered"] if asked.ordered else []))
        try:
            outcome = job.run(asked.rounds)
        finally:
            job.stop()
            server.kill()
    print(json.dumps(vars(outcome), indent=2))
    sys.exit(not outcome.lines == outcome.results == outcome.distinct == outcome.right)


if __name__ == "__main__":
    main()
