"""The Redis users that docs/operations.md recommends: the service works with them, and they can do no more."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import redis

from orcastream.cli.main import main
from orcastream.demo.prompts import SHOWCASE
from orcastream.schemas.keys import CLASSES, Keys
from tests.chaos.patches import pace
from tests.docs.producers import EXAMPLES
from tests.path.gateway_process import GatewayProcess
from tests.path.stream import Stream
from tests.patience import PATIENCE_S
from tests.redis_cluster import RedisCluster
from tests.redis_server import RedisServer, one_server
from tests.worker.worker_process import WorkerProcess

pytestmark = one_server("system")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
BLOCK = re.search(r"<!-- redis users -->\n```\n(.*?)```\n<!-- /redis users -->", PAGE, re.DOTALL)
REQUESTS = "orca:{orca-demo}:requests:normal"
DEAD = "orca:{orca-demo}:dead"
NOBODY = (
    "FLUSHALL",
    "CONFIG GET maxmemory",
    "KEYS *",
    "XTRIM {requests} MAXLEN 0",
    "XGROUP DESTROY {requests} workers",
)
PROMPT, ANSWER = next(item for item in SHOWCASE if item[0].startswith("Count from 1 "))
BODY = {"model": "orca-demo", "prompt": PROMPT, "max_tokens": 400, "temperature": 0, "timeout": 120}
PACE = partial(pace, 0.02)
"""Of the workers: an answer of a hundred tokens lasts long enough to be broken off."""


def users() -> dict[str, list[str]]:
    """The rules of each user, by name."""
    assert BLOCK
    lines = [line.split() for line in BLOCK[1].splitlines()]
    return {name: rules for _, name, *rules in lines}


class Guarded:
    """A server on which only these users exist."""

    def __init__(self, server: RedisServer) -> None:
        self.port = server.port
        with server.client() as client:
            if int(client.info("server")["redis_version"].split(".")[0]) < 7:
                pytest.skip("this redis-server has no permissions for reading and writing apart")
            for name, rules in sorted(users().items(), key=lambda user: user[0] == "default"):
                client.execute_command("ACL", "SETUSER", name, *rules)

    def url(self, user: str) -> str:
        """Return the URL that `user` connects to."""
        return f"redis://{user}:CHANGE-{user}@127.0.0.1:{self.port}/0"

    def client(self, user: str) -> "redis.Redis":
        """Return a connection as `user` that sends no commands on its own."""
        return redis.Redis.from_url(self.url(user), driver_info=None, retry=None)


@pytest.fixture(scope="module")
def guarded(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    server = RedisServer(redis_binary, tmp_path_factory.mktemp("redis"))
    server.start()
    try:
        yield Guarded(server)
    finally:
        server.kill()


@pytest.fixture
def service(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[GatewayProcess, list[WorkerProcess]]]:
    """A gateway with metrics enabled, and two workers, each as its own user."""
    monkeypatch.setenv("ORCASTREAM_METRICS", "true")
    workers = [WorkerProcess(guarded.url("worker"), tmp_path / f"worker{number}.log", patch=PACE) for number in (0, 1)]
    gateway = GatewayProcess(guarded.url("gateway"), tmp_path / "gateway.log")
    gateway.wait_ready()
    yield gateway, workers
    for process in (gateway, *workers):
        process.kill()


def refused(admin: "redis.Redis") -> set[tuple[str, str]]:
    """User and object of each refusal since the log was reset."""
    entries: Any = admin.execute_command("ACL", "LOG")
    return {(entry[b"username"].decode(), entry[b"object"].decode()) for entry in entries}


def _run_a_job(guarded: Guarded, directory: Path) -> None:
    """Submit a job as the gateway's user; list it, cancel it once it lacks a line, and delete it as the console's."""
    (directory / "in.jsonl").write_text(json.dumps({"prompt": PROMPT, "temperature": 0}))
    model = ["--served-model-name", "orca-demo"]
    submit = ["submit", str(directory / "in.jsonl"), "--job", "bulk", "--redis-url", guarded.url("gateway")]
    assert main([*submit, *model]) == 0
    console = ["--redis-url", guarded.url("console"), *model]
    for command in (["top", "--once", "--interval-s", "0.2"], ["results"]):
        assert main([*command, *console]) == 0
    job = Keys("orca-demo").job("bulk")
    with guarded.client("admin") as admin:
        for total, options, code in ((2, "--cancel", 1), (1, "--delete", 0)):
            admin.hset(job, "total", str(total))
            assert main(["results", "bulk", options, *console]) == code
        assert not admin.exists(job)


def _run_a_batch(gateway: GatewayProcess) -> None:
    """Upload, answer, read, list and delete a batch."""
    body = {"model": "orca-demo", "prompt": PROMPT}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        file = client.files.create(file=json.dumps(line).encode(), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        while batch.status != "completed":
            time.sleep(0.1)
            batch = client.batches.retrieve(batch.id)
        assert client.files.content(batch.output_file_id or "").content
        assert [one.id for one in client.batches.list()] == [batch.id]
        assert client.files.delete(file.id).deleted


def test_the_service_works_and_nothing_is_refused(
    guarded: Guarded, service: tuple[GatewayProcess, list[WorkerProcess]], tmp_path: Path
) -> None:
    gateway, workers = service
    with guarded.client("admin") as admin:
        admin.execute_command("ACL", "LOG", "RESET")

    def kill(stream: Stream) -> None:
        next(worker for worker in workers if f"-{worker.pid}-" in stream.workers[-1]).kill()

    def cancel(stream: Stream) -> None:
        httpx.delete(f"{gateway.url}/v1/requests/{stream.request_id}", timeout=PATIENCE_S).raise_for_status()

    def metrics() -> str:
        return httpx.get(f"{gateway.url}/metrics", timeout=PATIENCE_S).text

    metrics()  # from here on the gateway reads queue and server
    taken_over = Stream().post(gateway.url, BODY, {10: kill})
    assert taken_over.text.strip() == ANSWER
    assert len(set(taken_over.workers)) == 2
    cancelled = Stream().post(gateway.url, BODY, {10: cancel})
    assert cancelled.error is not None
    assert cancelled.error["code"] == "cancelled"
    producer = [sys.executable, str(EXAMPLES / "producer_redis.py"), "--url", guarded.url("producer"), "[1, 17, 42]"]
    assert subprocess.run(producer, timeout=PATIENCE_S, check=False).returncode == 0
    _run_a_job(guarded, tmp_path)
    _run_a_batch(gateway)
    while "orcastream_redis_commands_slow" not in (page := metrics()):
        time.sleep(0.1)
    assert "orcastream_redis_memory_used" in page
    with guarded.client("producer") as client, guarded.client("keda") as keda, guarded.client("admin") as admin:
        client.xadd(REQUESTS, {"id": "broken", "v": "1", "deadline": "4000000000000", "payload": "{}"})
        letters: Any = admin.xread({DEAD: "0-0"}, block=10_000)
        assert letters[0][1][0][1][b"id"] == b"broken"
        assert keda.xlen(REQUESTS) == 0
        assert refused(admin) <= {("producer", "client|setinfo")}  # redis-py continues


def test_the_console_works_and_nothing_is_refused(guarded: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"v": "1", "deadline": "4000000000000", "payload": '{"prompt":[1]}'}

    def run(*command: str) -> list[dict[str, Any]]:
        assert (
            main([*command, "--json", "--redis-url", guarded.url("console"), "--served-model-name", "orca-demo"]) == 0
        )
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    with guarded.client("producer") as client, guarded.client("admin") as admin:
        admin.execute_command("ACL", "LOG", "RESET")
        now_ms = admin.time()[0] * 1000
        client.xadd(REQUESTS, {**fields, "id": "waits", "deadline": str(now_ms + 60_000)})
        own = {"entry": "normal 1-1", "reason": "dead_letter", "message": "", "attempts": "3", "bytes_before": "0"}
        letters = [admin.xadd(DEAD, {**own, **fields, "id": f"dead{number}"}).decode() for number in range(2)]
        assert {"waits"} == {row["id"] for row in run("requests", "list")}
        run("dead-letters", "show", letters[0])
        replayed = run("dead-letters", "replay", letters[0])[0]["id"]
        for request_id in ("waits", replayed):
            run("requests", "show", request_id)
            run("requests", "cancel", request_id)
        assert run("dead-letters", "purge", "--all")[0]["deleted"] >= 1
        assert run("dead-letters", "list") == run("requests", "list") == []
        assert admin.execute_command("ACL", "LOG") == []


@pytest.mark.parametrize(
    ("user", "command"),
    [
        *((user, command) for user in ("gateway", "worker", "producer", "keda", "console") for command in NOBODY),
        *(("producer", command) for command in ("XRANGE {requests} - +", "XREAD STREAMS {requests} 0", "GET {cancel}")),
        *(
            ("producer", command)
            for command in ("XADD {reply} * type error", "XADD {other} * id x", "XDEL {requests} 1")
        ),
        *(
            ("keda", command)
            for command in (
                "XRANGE {requests} - +",
                "XADD {requests} * id x",
                "XLEN {other}",
                "XLEN {dead}",
                "XLEN {reply}",
                "XINFO GROUPS {requests}",
                "XPENDING {requests} workers",
                "INFO",
            )
        ),
        ("gateway", "XREADGROUP GROUP workers me STREAMS {requests} >"),
        ("console", "XREADGROUP GROUP workers me STREAMS {requests} >"),
        *((user, "HVALS {work}") for user in ("console", "worker")),
        ("console", "XADD {other} * id x"),
        ("gateway", "XADD {other} * id x"),
        ("worker", "XADD {other} * id x"),
    ],
)
def test_unneeded_commands_are_refused(guarded: Guarded, user: str, command: str) -> None:
    keys = {
        "requests": REQUESTS,
        "cancel": "orca:{orca-demo}:cancel:x",
        "reply": "orca:reply:{00}:x",
        "other": "other:{orca-demo}:requests:normal",
        "dead": DEAD,
        "work": "orca:{orca-demo}:work",
    }
    with guarded.client(user) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*(part.format(**keys) for part in command.split()))


@pytest.mark.parametrize("database", [0, 3])
def test_keda_gets_the_lengths_with_its_clients_commands(guarded: Guarded, database: int) -> None:
    """KEDA's scaler asks PING, then XLEN; its client, go-redis 9.22, begins with HELLO, as MONITOR saw it.

    With a `databaseIndex`, SELECT comes next.
    """
    url = f"{guarded.url('keda').removesuffix('0')}{database}"
    with redis.Redis.from_url(url, driver_info=None, retry=None, protocol=3, single_connection_client=True) as client:
        for told in ("LIB-NAME go-redis(,go1.27)", "LIB-VER 9.22.0"):  # refused, and KEDA continues
            with pytest.raises(redis.exceptions.ResponseError):
                client.execute_command("CLIENT", "SETINFO", *told.split())
        assert client.execute_command("PING")
        for name in CLASSES:
            assert client.execute_command("XLEN", Keys("orca-demo").requests(name)) >= 0


def test_a_queue_in_lanes_works_with_these_permissions(guarded: Guarded) -> None:
    with guarded.client("producer") as client, guarded.client("keda") as keda, guarded.client("admin") as admin:
        for keys in Keys("orca-demo", queue_lanes=3).each_lane:
            stream = keys.requests("normal")
            client.xadd(stream, {"id": "x"})
            client.set(f"{stream.partition(':requests:')[0]}:cancel:x", "1")
            assert keda.xlen(stream) >= 1
            admin.xtrim(stream, maxlen=0)
        with pytest.raises(redis.exceptions.NoPermissionError):
            keda.xlen(Keys("orca-demo-2").requests("normal"))


def test_a_producer_posts_to_a_cluster_by_its_own_client(redis_binary: str, tmp_path: Path) -> None:
    """redis-py asks for the table of commands before it follows slots."""
    cluster = RedisCluster(redis_binary, tmp_path, num_nodes=1)
    [node] = cluster.nodes
    try:
        cluster.start()
        with node.client() as admin:
            admin.execute_command("ACL", "SETUSER", "producer", *users()["producer"])
            admin.execute_command("ACL", "LOG", "RESET")
            with redis.RedisCluster(
                host="127.0.0.1", port=node.port, username="producer", password="CHANGE-producer"
            ) as client:
                assert client.xadd(REQUESTS, {"id": "x"})
                assert client.set("orca:{orca-demo}:cancel:x", "1")
                assert not client.xread({Keys("orca-demo").reply("x"): "0-0"})
            assert refused(admin) <= {("producer", "client|setinfo")}
    finally:
        cluster.stop()


def test_a_producer_may_be_allowed_to_find_out_that_redis_lost_its_request(guarded: Guarded) -> None:
    added = re.search(r"To allow that,\s+add\s+`([^`]+)`", PAGE)
    assert added
    rules = [*users()["producer"], *added[1].split()]
    keys = Keys("orca-demo", queue_lanes=3)
    with guarded.client("admin") as admin:
        admin.execute_command("ACL", "SETUSER", "checking", *rules)
        admin.execute_command("ACL", "LOG", "RESET")
        with redis.Redis.from_url(
            guarded.url("producer").replace("//producer:", "//checking:"), driver_info=None, retry=None
        ) as client:
            client.ping()
            for number in range(8):
                name = f"id-{number}"
                client.get(keys.seen(name))
                client.xrange(keys.in_lane(keys.lane_of(name)).requests("normal"), "1-1", "1-1")
                client.xrange(keys.reply(name))
        assert admin.execute_command("ACL", "LOG") == []


def test_every_command_of_the_code_is_allowed(guarded: Guarded) -> None:
    """Commands that the test above does not reach: those in the code whose names the server knows."""
    with guarded.client("admin") as admin:
        known = {name.decode().upper() for name in admin.command_list()}
    used = {
        word
        for room in ("broker", "gateway", "worker")
        for path in (ROOT / room).rglob("*")
        if path.suffix in (".py", ".lua")
        for word in re.findall(r"""\(["']([A-Z]+)["']""", path.read_text(encoding="utf-8"))
    }
    rules = {rule for user in ("gateway", "worker") for rule in users()[user]}
    allowed = {rule[1:].partition("|")[0].upper() for rule in rules if rule.startswith("+")}
    if "gateways also need `+waitaof`" in " ".join(PAGE.split()):
        allowed.add("WAITAOF")  # not in the block: a server that does not know it would refuse the whole
    assert used & known
    assert used & known <= allowed
