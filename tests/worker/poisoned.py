"""Poisoned requests among good ones: `python -m tests.worker.poisoned --requests 500 --poisoned 50`.

A supervisor restarts workers that die; each poisoned request kills the worker that computes it. Exit status 0: every
poisoned request became a dead letter, no other request did, and every other answer equals that of an undisturbed run.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from orcastream.schemas.errors import ErrorCode
from tests.redis_server import RedisServer, embedded_binary, system_binary
from tests.worker import poison
from tests.worker.demo_engine import demo_engine
from tests.worker.producer import Producer
from tests.worker.worker_process import WorkerProcess

MAX_DELIVERIES: Final = 2
_GIVE_UP_S: Final = 1500.0
_PROMPT: Final = "Count from {} to {}"
MAX_TOKENS: Final = 20


@dataclass
class Outcome:
    """What became of all requests."""

    dead_letters: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    deaths: int = 0
    seconds: float = 0.0


def run(
    producer: Producer,
    start_worker: Callable[..., WorkerProcess],
    prompts: Sequence[list[int]],
    expected: Callable[..., list[int]],
    *,
    poisoned: int,
    workers: int = 2,
) -> Outcome:
    """Post a request per prompt, `poisoned` of them spread among the others, and tend workers until all have ended."""
    outcome, begin = Outcome(), time.monotonic()
    every = len(prompts) // poisoned
    ids = [f"poison{number}" if number % every == 0 else f"good{number}" for number in range(len(prompts))]
    for request_id, prompt in zip(ids, prompts, strict=True):
        producer.post(prompt, request_id=request_id, max_tokens=MAX_TOKENS, ignore_eos=True, timeout_s=3600)
    fleet = [start_worker(max_deliveries=MAX_DELIVERIES, patch=poison.kills) for _ in range(workers)]
    while not producer.queue_is_empty() or any(not producer.redis.exists(producer.keys.reply(one)) for one in ids):
        assert time.monotonic() < begin + _GIVE_UP_S, "requests are left"
        for index, worker in enumerate(fleet):
            if not worker.running:
                outcome.deaths += 1
                fleet[index] = start_worker(max_deliveries=MAX_DELIVERIES, patch=poison.kills)
        time.sleep(0.02)
    outcome.seconds = time.monotonic() - begin
    letters = {fields[b"id"].decode() for _, fields in producer.redis.xrange(producer.keys.dead)}
    for request_id, prompt in zip(ids, prompts, strict=True):
        _judge(outcome, producer, request_id, request_id in letters, prompt, expected)
    return outcome


def _judge(
    outcome: Outcome,
    producer: Producer,
    request_id: str,
    is_letter: bool,
    prompt: list[int],
    expected: Callable[..., list[int]],
) -> None:
    fold = producer.read(request_id)
    error = None if fold.terminal is None else fold.terminal.error
    if request_id.startswith("poison"):
        good = is_letter and error is ErrorCode.DEAD_LETTER
        outcome.dead_letters += good
    else:
        good = not is_letter and error is None
        good = good and fold.tokens[0] == expected(prompt, max_tokens=MAX_TOKENS, ignore_eos=True)
        outcome.right += good
    if not good:
        outcome.wrong.append(f"{request_id}: {error}, dead letter: {is_letter}")


def main(arguments: list[str]) -> int:
    """Run it and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.worker.poisoned", description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--poisoned", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", default=None, help="where to write the figures")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        outcome = _on_a_server(Path(folder), options)
    told = json.dumps({"requests": options.requests, "poisoned": options.poisoned, **vars(outcome)}, indent=2)
    print(told)
    if options.json:
        Path(options.json).write_text(told + "\n")
    return 1 if outcome.wrong else 0


def _on_a_server(folder: Path, options: argparse.Namespace) -> Outcome:
    from orcastream import demo
    from orcastream.schemas.sampling import SamplingParams
    from orcastream.text.tokenizer import Tokenizer

    binary = system_binary() or embedded_binary()
    assert binary is not None, "no redis-server found on this machine"
    server = RedisServer(binary, folder / "redis")
    server.start()
    tokenizer = Tokenizer.load(str(demo.MODEL_DIR))
    engine = demo_engine()
    workers: list[WorkerProcess] = []

    def start_worker(**settings: Any) -> WorkerProcess:
        workers.append(WorkerProcess(server.url, folder / f"worker{len(workers)}.log", **settings))
        return workers[-1]

    def expected(prompt: list[int], **sampling: Any) -> list[int]:
        return list(engine.generate([prompt], SamplingParams(temperature=0.0, **sampling))[0].output_ids)

    try:
        return run(
            Producer(server.url),
            start_worker,
            [tokenizer.encode(_PROMPT.format(number, number + 30)) for number in range(options.requests)],
            expected,
            poisoned=options.poisoned,
            workers=options.workers,
        )
    finally:
        for worker in workers:
            worker.kill()
        server.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
