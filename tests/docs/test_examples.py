"""The producers of docs/producers.md, run as written against a real Redis server.

The worker here is scripted: plain redis-py that claims the entry and writes a reply log, so that tests can produce
takeovers, gaps and conflicts at will. In tests/docs/test_examples_worker.py a real worker answers them.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Ending, Event, EventId, Output, Run, Started, Terminal, Usage, encode_event
from orcastream.schemas.keys import CLASSES, GROUP, Keys
from orcastream.schemas.request import GenerationRequest
from orcastream.schemas.stopping import FinishReason
from tests.docs.producers import MODEL, PROMPT, Producer, end_of, redis_cli, told
from tests.ports import free_port
from tests.redis_server import RedisServer

pytestmark = pytest.mark.server

KEYS = Keys(MODEL)


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    with server.client() as client:
        client.flushall()
        yield client


class ScriptedWorker:
    """Claims one entry and answers it as scripted."""

    def __init__(self, client: Any) -> None:
        self._client = client
        for name in CLASSES:
            client.xgroup_create(KEYS.requests(name), GROUP, id="0", mkstream=True)
        self.request: GenerationRequest | None = None

    def go_on_with(self, client: Any) -> None:
        """Use another connection."""
        self._client = client

    def claim(self) -> GenerationRequest:
        """Wait for an entry and read it as a worker does."""
        streams = {KEYS.requests(name): ">" for name in CLASSES}
        [[stream, [[self._entry_id, fields]]]] = self._client.xreadgroup(GROUP, "w", streams, count=1, block=10_000)
        name = stream.decode().rsplit(":", 1)[1]
        now_ms = int(self._client.time()[0] * 1000)
        self.request = GenerationRequest.from_fields(fields, stream_class=name, now_ms=now_ms)
        return self.request

    def write(self, *events: tuple[int, int, Event]) -> None:
        """Append events with their epochs and indexes, in the form of the request."""
        assert self.request is not None
        for epoch, index, event in events:
            flat = encode_event(event, self.request.form)
            log = KEYS.reply(self.request.id)
            self._client.execute_command("XADD", log, str(EventId(epoch, index)), *flat)


def started(worker: str = "w1", n: int = 1) -> Started:
    return Started(worker, KEYS.model, "default", "normal", "normal 1-1", seed=2**63 - 1, prompt_tokens=3, n=n)


def tokens(position: int, *ids: int, choice: int = 0) -> Output:
    return Output((Run(choice, position, ids),))


def finished(*counts: int, runs: tuple[Run, ...] = ()) -> Terminal:
    return Terminal(tuple(Ending(FinishReason.LENGTH, count) for count in counts), Usage(3, sum(counts)), runs)


def test_an_answer(producer: Producer, server: RedisServer, client: Any) -> None:
    worker = ScriptedWorker(client)
    process = producer.start(server.url)
    request = worker.claim()
    assert request.payload.prompt == PROMPT
    assert request.form is producer.form
    worker.write((5, 0, started()), (5, 1, tokens(0, 10)), (5, 2, tokens(1, 11, 12)))
    worker.write((5, 3, finished(4, runs=(Run(0, 3, (13,)),))))
    status, lines, err = end_of(process)
    assert status == 0, err
    if producer.name == "cli":
        events = [line.partition(" ") for line in lines]
        assert [kind for kind, _, _ in events] == ["started", "tokens", "tokens", "finished"]
        assert json.loads(events[2][2]) == {"output": [{"choice": 0, "position": 1, "tokens": [11, 12]}]}
    else:
        assert told(lines) == [(0, 0, [10]), (0, 1, [11, 12]), (0, 3, [13])]
        kind, _, rest = lines[-1].partition(" ")
        assert kind == "finished"
        assert json.loads(rest)["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 0}


def test_tokens_are_shown_as_they_arrive(producer: Producer, server: RedisServer, client: Any) -> None:
    worker = ScriptedWorker(client)
    process = producer.start(server.url)
    worker.claim()
    assert process.stdout is not None
    for position in range(3):
        worker.write(
            *([(5, 0, started())] if position == 0 else []), (5, position + 1, tokens(position, 20 + position))
        )
        line = process.stdout.readline()
        if line.startswith("started"):
            line = process.stdout.readline()
        assert str(20 + position) in line
        assert process.poll() is None
    worker.write((5, 4, finished(3)))
    assert end_of(process)[0] == 0


def test_an_error_ends_the_producer(producer: Producer, server: RedisServer, client: Any) -> None:
    worker = ScriptedWorker(client)
    process = producer.start(server.url)
    worker.claim()
    worker.write((5, 0, started()))
    worker.write((5, 1, Terminal((Ending(None, 0),), Usage(3, 0), error=ErrorCode.EXPIRED, message="too late")))
    status, lines, _ = end_of(process)
    assert status == 1
    assert lines[-1].startswith("error ")
    assert json.loads(lines[-1].partition(" ")[2])["error"] == {"code": "expired", "message": "too late"}


def test_a_takeover_prints_nothing_twice(folding_producer: Producer, server: RedisServer, client: Any) -> None:
    worker = ScriptedWorker(client)
    process = folding_producer.start(server.url)
    worker.claim()
    worker.write((5, 0, started("w1", 2)), (5, 1, tokens(0, 10, 11)), (5, 2, tokens(0, 90, choice=1)))
    worker.write((9, 0, started("w2", 2)), (9, 1, tokens(1, 11, 12)), (9, 2, tokens(0, 90, 91, choice=1)))
    worker.write((9, 3, finished(3, 2)))
    status, lines, err = end_of(process)
    assert (status, told(lines)) == (0, [(0, 0, [10, 11]), (1, 0, [90]), (0, 2, [12]), (1, 1, [91])]), err


def test_a_gap_is_filled_by_a_later_epoch(folding_producer: Producer, server: RedisServer, client: Any) -> None:
    worker = ScriptedWorker(client)
    process = folding_producer.start(server.url)
    worker.claim()
    worker.write((5, 0, started()), (5, 1, tokens(0, 10)), (5, 2, tokens(3, 13)))
    worker.write((9, 0, started("w2")), (9, 1, tokens(1, 11, 12)), (9, 2, finished(4, runs=(Run(0, 3, (13,)),))))
    status, lines, err = end_of(process)
    assert (status, told(lines)) == (0, [(0, 0, [10]), (0, 1, [11, 12]), (0, 3, [13])]), err


CONTRADICTIONS: dict[str, tuple[tuple[int, int, Event], ...]] = {
    "another token": ((5, 1, tokens(0, 10)), (9, 0, started("w2")), (9, 1, tokens(0, 66))),
    "an end with tokens missing": ((5, 1, tokens(0, 10)), (5, 2, finished(5))),
    "a hole at the end": ((5, 1, tokens(0, 10)), (5, 2, tokens(3, 13)), (5, 3, finished(4))),
    "an end that counts fewer tokens": ((5, 1, tokens(0, 10)), (5, 2, finished(0))),
}


@pytest.mark.parametrize("events", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_conflict_is_an_explicit_error(
    folding_producer: Producer,
    server: RedisServer,
    client: Any,
    events: tuple[tuple[int, int, Event], ...],
) -> None:
    worker = ScriptedWorker(client)
    process = folding_producer.start(server.url)
    worker.claim()
    worker.write((5, 0, started()), *events)
    status, lines, err = end_of(process)
    assert status == 3
    assert "reply_conflict" in err
    assert told(lines) == [(0, 0, [10])]


def test_redis_restarts_in_the_middle(producer: Producer, server: RedisServer, tmp_path: Path) -> None:
    with_log = RedisServer(server.binary, tmp_path / "durable", aof="always")
    with_log.start()
    try:
        with with_log.client() as client:
            worker = ScriptedWorker(client)
            process = producer.start(with_log.url)
            worker.claim()
            worker.write((5, 0, started()), (5, 1, tokens(0, 10, 11)))
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or "[10,11]" not in lines[-1].replace(" ", ""):
                lines.append(process.stdout.readline())
        with_log.restart()
        with with_log.client() as client:
            worker.go_on_with(client)
            worker.write((9, 0, started("w2")), (9, 1, tokens(2, 12)), (9, 2, finished(3)))
            status, rest, err = end_of(process)
        assert status == 0, err
        if producer.name == "cli":
            assert [line.partition(" ")[0] for line in rest] == ["started", "tokens", "finished"]
        else:
            assert told(lines + rest) == [(0, 0, [10, 11]), (0, 2, [12])]
    finally:
        with_log.kill()


@pytest.mark.skipif(redis_cli() is None, reason="no redis-cli found")
def test_the_pages_commands_post_and_cancel(server: RedisServer, client: Any) -> None:
    page = (Path(__file__).parents[2] / "docs/producers.md").read_text(encoding="utf-8")
    blocks = [code for code in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "DEADLINE" in code]
    blocks = [code for code in blocks if "--eval" not in code]  # tests/docs/test_enqueue_script.py runs it
    assert len(blocks) == 3
    worker = ScriptedWorker(client)
    path = f"{Path(str(redis_cli())).parent}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "REDIS_URL": server.url}
    done = subprocess.run(["bash", "-euc", "".join(blocks)], env=variables, capture_output=True, text=True, check=True)
    assert "ERR" not in done.stdout
    request = worker.claim()
    assert (request.id, request.payload.prompt, request.payload.max_tokens) == ("my-request-1", PROMPT, 64)
    left_ms = request.deadline_ms - int(client.time()[0] * 1000)
    assert 0 < left_ms <= 60_000
    assert 0 < client.pttl(KEYS.cancel(request.id)) <= 60_000
    [[_, wake_up]] = client.xrange(KEYS.control)
    assert wake_up == {b"type": b"cancel", b"target": b"my-request-1"}


def test_redis_does_not_take_the_request(producer: Producer, server: RedisServer, client: Any) -> None:
    """One line says why, whether there is no server, or one that refuses the entry or every command."""
    client.config_set("requirepass", "secret")
    try:
        refused = end_of(producer.start(server.url))
    finally:
        client.config_set("requirepass", "")
    absent = end_of(producer.start(f"redis://127.0.0.1:{free_port()}/0"))
    client.set(KEYS.requests("normal"), "not a stream")
    wrong = end_of(producer.start(server.url))
    client.delete(KEYS.requests("normal"))
    for (status, lines, err), why in ((refused, "auth"), (absent, "onnect"), (wrong, "WRONGTYPE|against a key")):
        assert (status, lines) == (4, []), err
        assert re.search(f"(?im)^not confirmed: .*({why}|no answer from Redis)", err), err
        assert "Traceback" not in err


def test_no_worker_answers(server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each producer stops a little after its deadline; all run at once, because this takes five seconds."""
    producers = [Producer("redis", tmp_path)]
    if redis_cli():
        producers.append(Producer("cli", tmp_path))
    if shutil.which("npm"):
        producers.append(Producer("node", request.getfixturevalue("node_directory")))
    processes = [producer.start(server.url, deadline_s=0.1) for producer in producers]
    for process in processes:
        status, lines, err = end_of(process)
        assert (status, lines) == (2, [])
        assert "no end of orca:reply:{" in err


def test_a_request_that_redis_lost_is_posted_again(
    folding_producer: Producer, server: RedisServer, client: Any
) -> None:
    """No running process remembers the request."""
    process = folding_producer.start(server.url)
    worker = ScriptedWorker(client)
    first = worker.claim()
    client.flushall()
    worker = ScriptedWorker(client)
    again = worker.claim()
    assert (again.id, again.payload, again.deadline_ms) == (first.id, first.payload, first.deadline_ms)
    worker.write((9, 0, started()), (9, 1, tokens(0, 10)), (9, 2, finished(1)))
    status, _, err = end_of(process)
    assert status == 0, err
    assert "posted again" in err
