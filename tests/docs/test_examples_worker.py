"""The producers of docs/producers.md, with a real worker that serves the demo model."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orcastream import demo
from orcastream.text.tokenizer import Tokenizer
from tests.docs.producers import EXAMPLES, MODEL, Producer, end_of, told
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer
from tests.worker.worker_process import PACED, WorkerProcess

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
QUESTION = "Count from 3 to 7."


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    """Return token ids as the page obtains them: `orcastream tokenize --chat`."""
    command = [sys.executable, "-m", "orcastream.cli.main", "tokenize", "--chat", QUESTION]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    ids: list[int] = json.loads(done.stdout)
    return ids


@pytest.fixture(scope="module")
def worker(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """One worker for all tests of the module."""
    with server.client() as client:
        client.flushall()
    worker = WorkerProcess(server.url, tmp_path_factory.mktemp("worker") / "log")
    worker.wait_serving()
    yield worker
    worker.kill()


def tokens_of(producer: Producer, lines: list[str]) -> list[int]:
    """Return the answer that the producer printed."""
    if producer.name != "cli":
        return flat(lines)
    events = [json.loads(line.partition(" ")[2]) for line in lines]
    runs = [run for event in events for run in event.get("output", [])]
    assert [run["position"] for run in runs] == [sum(len(r["tokens"]) for r in runs[:i]) for i in range(len(runs))]
    return [token for run in runs for token in run["tokens"]]


def test_the_model_answers(producer: Producer, server: RedisServer, worker: WorkerProcess, prompt: list[int]) -> None:
    status, lines, err = end_of(producer.start(server.url, prompt=prompt))
    assert status == 0, err
    tokenizer = Tokenizer.load(str(demo.MODEL_DIR))
    ids = tokens_of(producer, lines)
    end = json.loads(lines[-1].partition(" ")[2])
    assert tokenizer.decode(ids) == "3, 4, 5, 6, 7"
    assert end["choices"][0]["finish_reason"] == "stop"
    assert end["usage"]["completion_tokens"] == len(ids)


def test_a_request_that_breaks_a_rule_gets_an_error(
    producer: Producer, server: RedisServer, worker: WorkerProcess
) -> None:
    """In the form of the request: a shell can read nothing else."""
    status, lines, err = end_of(producer.start(server.url, prompt=[1, -5]))
    assert status == 1, err
    error = json.loads(lines[-1].partition(" ")[2])["error"]
    assert error == {
        "code": "invalid_request",
        "field": "prompt.1",
        "message": "prompt.1: got -5, allowed: at least 0",
    }


def test_choices_are_distinguished(server: RedisServer, worker: WorkerProcess, prompt: list[int]) -> None:
    command = [sys.executable, str(EXAMPLES / "producer_redis.py"), "--url", server.url, "--model", MODEL]
    command += ["--n", "3", "--temperature", "1.5", "--max-tokens", "8", json.dumps(prompt)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    answers: dict[int, list[int]] = {}
    for choice, position, ids in told(done.stdout.splitlines()):
        assert position == len(answers.setdefault(choice, []))
        answers[choice] += ids
    end = json.loads(done.stdout.splitlines()[-1].partition(" ")[2])
    assert [len(answers[choice]) for choice in range(3)] == [choice["tokens"] for choice in end["choices"]]


def test_the_worker_is_killed_in_the_middle(tmp_path: Path, server: RedisServer) -> None:
    """Two workers, one answer: the producer prints the same as without a fault."""
    producer = Producer("redis", tmp_path)
    tokenizer = Tokenizer.load(str(demo.MODEL_DIR))
    question = tokenizer.chat([{"role": "user", "content": "Count from 1 to 100"}])
    own_server = RedisServer(server.binary, tmp_path / "redis")
    own_server.start()
    workers = [WorkerProcess(own_server.url, tmp_path / f"worker{number}.log", patch=PACED) for number in range(2)]
    try:
        for worker in workers:
            worker.wait_serving()
        status, undisturbed, err = end_of(producer.start(own_server.url, prompt=question, max_tokens=400))
        assert status == 0, err
        process = producer.start(own_server.url, prompt=question, max_tokens=400)
        assert process.stdout is not None
        assert process.stderr is not None
        holder = process.stderr.readline()
        shown = [process.stdout.readline().strip() for _ in range(5)]
        victim = next(worker for worker in workers if f"-{worker.pid}-" in holder)
        victim.kill()
        status, rest, err = end_of(process)
    finally:
        for worker in workers:
            worker.kill()
        own_server.kill()
    assert status == 0, err
    assert "started by " in err, "no worker took the request over"
    assert flat(shown + rest) == flat(undisturbed)


def flat(lines: list[str]) -> list[int]:
    """Return all printed tokens, in order."""
    return [token for _, _, ids in told(lines) for token in ids]
