"""`orcastream requests` and `orcastream dead-letters`, against real servers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from orcastream.broker.dead_letter import bury
from orcastream.broker.entry import EntryRef
from orcastream.broker.link import Link
from orcastream.broker.queue import RequestQueue, ensure_groups
from orcastream.cli.main import main
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import Keys
from tests.broker.scripted import ScriptedWorker, bare_fields, enqueue, make_request
from tests.redis_server import RedisServer

KEYS = Keys("demo")
MARKER = "a secret of the prompt"
SECRET_ID = 987_654_321

Prepare = Callable[[Link], Awaitable[Any]]


class Console:
    """The commands on one server."""

    def __init__(self, server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
        self.server = server
        self._capsys = capsys

    def prepare(self, steps: Prepare) -> Any:
        """Prepare the server's state through the broker."""

        async def connected() -> Any:
            link = await Link.open(self.server.url)
            try:
                await ensure_groups(link, KEYS)
                return await steps(link)
            finally:
                await link.close()

        return asyncio.run(connected())

    def run(self, *command: str, code: int = 0) -> str:
        """Return what the command prints; on standard error if `code` is not 0."""
        options = ["--redis-url", self.server.url, "--served-model-name", KEYS.model]
        assert main([*command, *options]) == code
        printed = self._capsys.readouterr()
        shown = printed.err if code else printed.out
        assert not code or (shown.count("\n") == 1 and not printed.out)
        return shown

    def json(self, *command: str) -> list[dict[str, Any]]:
        """Return the objects that the command prints with --json."""
        return [json.loads(line) for line in self.run(*command, "--json").splitlines()]


@pytest.fixture
def console(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(redis_server, capsys)


async def _three(link: Link) -> None:
    """Set up a running request with two tokens, one that waits, and one of another class as its producer wrote it."""
    await enqueue(link, KEYS, make_request("runs", priority_class="high", prompt=[SECRET_ID, 2]))
    await enqueue(link, KEYS, make_request("waits", priority_class="high", prompt=[SECRET_ID]))
    await link.call("XADD", KEYS.requests("low"), "*", *bare_fields(make_request("bare", priority_class="low")))


async def _with_worker(console: Console, link: Link) -> None:
    await _three(link)
    worker = await ScriptedWorker(console.server.url, KEYS, "w1", salt=7).connect()
    job = await worker.take()
    await worker.step(job, 2)
    await worker.close()


def test_the_list_shows_waiting_and_running_requests(console: Console) -> None:
    assert console.json("requests", "list") == []
    console.prepare(lambda link: _with_worker(console, link))
    rows = console.json("requests", "list")
    told = [(row["id"], row["class"], row["state"], row["worker"], row["deliveries"]) for row in rows]
    assert told == [
        ("runs", "high", "running", "w1", 1),
        ("waits", "high", "waiting", None, 0),
        ("bare", "low", "waiting", None, 0),
    ]
    assert rows[0]["epoch"] > 1_600_000_000_000
    assert rows[1]["epoch"] is None
    assert all(row["age_s"] >= 0 and row["deadline_in_s"] > 0 and row["payload_bytes"] > 0 for row in rows)
    assert [row["id"] for row in console.json("requests", "list", "--class", "low")] == ["bare"]
    assert [row["id"] for row in console.json("requests", "list", "--worker", "w1")] == ["runs"]
    assert [row["id"] for row in console.json("requests", "list", "--state", "waiting", "--limit", "1")] == ["waits"]
    table = console.run("requests", "list").splitlines()
    head = "class age state worker epoch lease_age deliveries deadline_in id"
    assert " ".join(table[0].split()) == head
    assert [line.split()[-1] for line in table[1:]] == ["runs", "waits", "bare"]


def test_a_request_is_shown_without_its_prompt_unless_requested(console: Console) -> None:
    console.prepare(lambda link: _with_worker(console, link))
    (shown,) = console.json("requests", "show", "runs")
    assert (shown["state"], shown["worker"], shown["output_tokens"], shown["prompt_tokens"]) == (
        "running",
        "w1",
        [2],
        2,
    )
    assert shown["cancelled"] is False
    for command in (["requests", "show", "runs"], ["requests", "show", "waits"], ["requests", "list", "--json"]):
        assert str(SECRET_ID) not in console.run(*command)
    (whole,) = console.json("requests", "show", "runs", "--content")
    assert (whole["prompt"], whole["output"]) == ([SECRET_ID, 2], [[7, 17]])
    assert console.json("requests", "show", "bare")[0]["state"] == "waiting"


def test_a_missing_request_is_exit_code_1_and_one_line(console: Console) -> None:
    assert "requests show: id: got 'nobody'" in console.run("requests", "show", "nobody", code=1)
    console.run("requests", "cancel", "nobody", code=1)
    for command in ("show", "replay"):
        console.run("dead-letters", command, "1-1", code=1)


def test_a_command_without_redis_is_exit_code_3_without_the_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["requests", "list", "--redis-url", "redis://me:hidden@127.0.0.1:1"]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "hidden" not in error
    assert main(["dead-letters", "purge"]) == 2
    assert main(["dead-letters", "show", "no-letter", "--redis-url", "redis://127.0.0.1:1"]) == 2


@pytest.mark.parametrize("request_id", ["waits", "bare"])
def test_cancel_ends_a_waiting_request_even_if_unclaimed(console: Console, request_id: str) -> None:
    console.prepare(lambda link: _with_worker(console, link))
    assert console.json("requests", "cancel", request_id) == [{"id": request_id, "cancelled": True, "was": "waiting"}]
    assert request_id not in [row["id"] for row in console.json("requests", "list")]
    (shown,) = console.json("requests", "show", request_id)
    assert (shown["state"], shown["ended"]) == ("ended", "cancelled")
    console.run("requests", "cancel", request_id, code=1)


def test_cancel_of_a_running_request_is_left_to_its_worker(console: Console) -> None:
    console.prepare(lambda link: _with_worker(console, link))
    assert console.json("requests", "cancel", "runs")[0]["was"] == "running"
    (shown,) = console.json("requests", "show", "runs")
    assert (shown["state"], shown["cancelled"]) == ("running", True)


async def _bury(link: Link, request_id: str = "dead", **changes: Any) -> EntryRef:
    changes = {"priority_class": "high", "prompt": [SECRET_ID], **changes}
    ref = (await enqueue(link, KEYS, make_request(request_id, **changes))).entry
    message = f"prompt: got '{MARKER}', allowed: tokens"
    assert await bury(link, KEYS, ref, reason=ErrorCode.DEAD_LETTER, message=message, waiting=True)
    return ref


def test_letters_are_listed_and_shown_without_their_prompts(console: Console) -> None:
    assert console.run("dead-letters", "list") == ""
    ref = console.prepare(lambda link: _bury(link, tenant="blue"))
    (row,) = console.json("dead-letters", "list")
    assert (row["id"], row["class"], row["entry"], row["reason"]) == ("dead", "high", str(ref), "dead_letter")
    (shown,) = console.json("dead-letters", "show", row["letter"])
    assert (shown["tenant"], shown["prompt_tokens"]) == ("blue", 1)
    for command in (["list"], ["list", "--json"], ["show", row["letter"]]):
        told = console.run("dead-letters", *command)
        assert MARKER not in told
        assert str(SECRET_ID) not in told
        assert "prompt: allowed: tokens" in told
    (whole,) = console.json("dead-letters", "show", row["letter"], "--content")
    assert whole["payload"]["prompt"] == [SECRET_ID]
    assert MARKER in whole["message"]


def test_a_junk_letter_is_shown_as_it_is(console: Console) -> None:
    async def junk(link: Link) -> None:
        await link.call("XADD", KEYS.dead, "*", "what", b"\x1b[2J\xff")
        await link.call("XADD", KEYS.requests("low"), "*", "id", "\x1b[2J", "deadline", "soon")

    console.prepare(junk)
    (row,) = console.json("dead-letters", "list")
    assert (row["reason"], row["attempts"], row["payload_bytes"]) == ("", 0, 0)
    console.run("dead-letters", "replay", row["letter"], code=1)
    assert "\x1b" not in console.run("requests", "list")


def test_a_replay_is_a_new_request_once(console: Console) -> None:
    """The old id stays ended; the new one comes from the letter: a replay repeated after a lost reply adds none."""
    console.prepare(lambda link: _bury(link, "chatcmpl-dead", tenant="blue"))
    (row,) = console.json("dead-letters", "list")
    letter = row["letter"]
    fields = console.prepare(lambda link: link.call("XRANGE", KEYS.dead, letter, letter))[0][1]
    (done,) = console.json("dead-letters", "replay", letter)
    assert done["id"] == f"chatcmpl-dead.r{letter}"
    assert (done["was"], done["again"]) == ("chatcmpl-dead", False)
    (queued,) = console.json("requests", "list")
    assert (queued["id"], queued["class"]) == (done["id"], "high")
    assert queued["deadline_in_s"] > 500
    shown = console.json("requests", "show", done["id"])[0]
    assert (shown["tenant"], shown["on_disconnect"]) == ("blue", "continue")
    assert console.json("dead-letters", "list") == []
    console.prepare(lambda link: _again(link, letter, fields))
    assert console.json("dead-letters", "replay", letter)[0]["again"] is True
    assert console.prepare(lambda link: RequestQueue(link, KEYS).depth()) == 1


async def _again(link: Link, letter: str, fields: list[bytes]) -> None:
    """Restore the letter to its state before the replay, as if only its deletion had not happened."""
    await link.call("DEL", KEYS.dead)
    await link.call("XADD", KEYS.dead, letter, *fields)


def test_purge_deletes_the_named_letters(console: Console) -> None:
    async def many(link: Link) -> None:
        for number in range(40):
            await _bury(link, f"dead{number}")
        ref = (await enqueue(link, KEYS, make_request("bad"))).entry
        await bury(link, KEYS, ref, reason=ErrorCode.INVALID_REQUEST, message="", waiting=True)

    console.prepare(many)
    assert len(console.json("dead-letters", "list", "--limit", "0")) == 41
    assert len(console.json("dead-letters", "list", "--limit", "20")) == 20
    assert console.json("dead-letters", "purge", "--older-than-s", "3600") == [{"deleted": 0}]
    assert console.json("dead-letters", "purge", "--reason", "dead_letter") == [{"deleted": 40}]
    assert [row["id"] for row in console.json("dead-letters", "list")] == ["bad"]
    assert console.run("dead-letters", "purge", "--all") == "deleted  1\n"


def test_a_long_queue_is_read_in_pieces(console: Console) -> None:
    """Of prompts of 12 MB in total, the console gets only the lengths."""

    async def many(link: Link) -> None:
        for number in range(50):
            await enqueue(link, KEYS, make_request(f"r{number}", prompt=[SECRET_ID] * 60_000))

    console.prepare(many)
    with console.server.client() as client:
        before = client.info("stats")["total_net_output_bytes"]
        rows = console.json("requests", "list", "--limit", "0")
        assert [row["id"] for row in rows] == [f"r{number}" for number in range(50)]
        assert client.info("stats")["total_net_output_bytes"] - before < 100_000


def test_a_letter_of_another_lane_is_shown_and_replayed_as_listed(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = Keys(KEYS.model, queue_lanes=2)
    request_id = next(name for name in map(str, range(9)) if keys.lane_of(name) == 1)

    async def bury_one(link: Link) -> None:
        enqueued = await RequestQueue(link, keys).enqueue(make_request(request_id), terms=None, retention_ms=60_000)
        await bury(link, keys, enqueued.entry, reason=ErrorCode.DEAD_LETTER, message="no", waiting=True)

    console = Console(redis_server, capsys)
    console.prepare(bury_one)
    console.run("dead-letters", "show", "1-0.1", code=1)
    monkeypatch.setenv("ORCASTREAM_QUEUE_LANES", "2")
    (row,) = console.json("dead-letters", "list")
    assert row["letter"].endswith("-0.1")
    assert console.json("dead-letters", "show", row["letter"])[0]["id"] == request_id
    assert console.json("dead-letters", "replay", row["letter"])[0]["was"] == request_id
    assert console.json("dead-letters", "list") == []
