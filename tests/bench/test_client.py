"""A client detects every way in which an answer can fail."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from orcastream.bench.figures.outcome import Objectives, Outcome
from orcastream.bench.serve.client import LOST, UNCOUNTED, UNREADABLE, Client
from orcastream.bench.serve.loops import Stop, closed_loop, open_loop
from orcastream.bench.workloads import SampleRequest
from tests.bench.scripted_gateway import Answer, scripted_gateway
from tests.ports import free_port

QUESTION = SampleRequest("Count", "1, 2")
START = b'data: {"choices": [], "served_by": {"worker": "w1", "epoch": 5}}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"


def piece(text: str, reason: str | None = None) -> bytes:
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}, 'finish_reason': reason}]})}\n\n".encode()


@asynccontextmanager
async def client(*parts: bytes, timeout_s: float = 10.0, **answer: Any) -> AsyncIterator[Client]:
    """A client of a gateway that sends `parts`, and then ends the stream, cuts it off, or hangs."""
    async with (
        scripted_gateway(lambda *_: Answer(parts, **answer)) as url,
        Client(url, "orca-demo", timeout_s=timeout_s) as one,
    ):
        yield one


async def ask(asking: AbstractAsyncContextManager[Client]) -> Outcome:
    async with asking as one:
        return await one.ask(QUESTION)


async def test_a_whole_answer() -> None:
    outcome = await ask(client(START, piece("1,"), piece(" 2", "stop"), USAGE, DONE))
    assert (outcome.text, outcome.tokens, outcome.finish_reason, outcome.workers) == ("1, 2", 3, "stop", ["w1"])
    assert outcome.complete
    assert outcome.exact
    assert len(outcome.pieces_s) == 2


@pytest.mark.parametrize(
    ("parts", "status", "error"),
    [
        ((START, piece("1,")), 200, LOST),
        ((START, b'data: {"error": {"code": "lost", "message": "gone"}}\n\n', DONE), 200, "in the stream: lost"),
        ((b'{"error": {"code": "queue_full"}}',), 429, "429 queue_full"),
        ((b"bad gateway",), 502, "502"),
        ((START, b"data: {\n\n", DONE), 200, UNREADABLE),
        ((START, b'data: {"choices": [{"text": "1"}]}\n\n', DONE), 200, UNREADABLE),
        ((START, piece("1,"), USAGE.replace(b"3", b"null"), DONE), 200, UNREADABLE),
        ((START, piece("1,"), USAGE.replace(b"5", b'"5"'), DONE), 200, UNREADABLE),
        ((START, piece("1,", "stop"), DONE), 200, UNCOUNTED),
    ],
)
async def test_lost_and_refused_requests_are_named(parts: tuple[bytes, ...], status: int, error: str) -> None:
    outcome = await ask(client(*parts, status=status))
    assert outcome.error == error
    assert not outcome.complete
    assert not outcome.exact


async def test_an_answer_that_never_ends() -> None:
    outcome = await ask(client(START, piece("1,"), hangs=True, timeout_s=0.05))
    assert outcome.error == "no end in time"


async def test_an_answer_that_is_cut_off_in_the_middle() -> None:
    outcome = await ask(client(START, piece("1,"), cut=True))
    assert outcome.error == "connection: ConnectionResetError"
    assert outcome.text == "1,"


async def test_a_response_that_is_not_http() -> None:
    async def shout(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"+OK this is no HTTP\r\n")
        writer.close()

    async with await asyncio.start_server(shout, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        outcome = await ask(Client(f"http://127.0.0.1:{port}", "m"))
    assert outcome.error == "connection: ConnectionResetError"


async def test_an_unreachable_gateway() -> None:
    outcome = await ask(Client(f"http://127.0.0.1:{free_port()}", "m"))
    assert outcome.error == "connection: ConnectionRefusedError"


@pytest.mark.parametrize("url", ["gateway:8000", "ftp://gateway", "http://"])
def test_an_invalid_url_is_named(url: str) -> None:
    with pytest.raises(ValueError, match=f"url: got '{url}'"):
        Client(url, "m")


async def test_a_request_that_waits_for_a_slot_counts_as_arrived() -> None:
    outcomes: list[Outcome] = []
    async with client(START, piece("1, 2", "stop"), USAGE, DONE) as one:
        await open_loop(one, [QUESTION] * 3, outcomes, Stop(), concurrency=1)
    assert len(outcomes) == 3
    assert all(outcome.exact for outcome in outcomes)
    assert len({outcome.arrived_s for outcome in outcomes}) == 1
    firsts = [outcome.pieces_s[0] for outcome in outcomes]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("exactly", [False, True])
async def test_a_wait_ends_in_time_or_when_stopped(exactly: bool) -> None:
    stop = Stop()
    begun = time.monotonic()
    assert not await stop.within(0.003, exactly=exactly)
    if exactly:  # a timer may fire early by its clock's resolution
        assert time.monotonic() - begun >= 0.003
    assert not await stop.within(-1, exactly=exactly)
    waiting = asyncio.create_task(stop.within(3600, exactly=exactly))
    await asyncio.sleep(0)
    stop.set()
    assert await waiting
    assert await stop.within(0, exactly=exactly)


async def test_stop_ends_the_load_but_not_requests_in_flight() -> None:
    outcomes: list[Outcome] = []
    stop = Stop()

    def stopping() -> Iterator[SampleRequest]:
        yield QUESTION
        stop.set()
        yield replace(QUESTION, arrival_s=3600.0)

    async with client(START, piece("1, 2", "stop"), USAGE, DONE) as one:
        await open_loop(one, stopping(), outcomes, stop)
        await closed_loop(one, stopping(), outcomes, stop, concurrency=2, duration_s=3600)
    assert [outcome.exact for outcome in outcomes] == [True]


@pytest.mark.parametrize("turns", [4, 1])
async def test_requests_in_flight_equal_the_number_of_clients(turns: int) -> None:
    """Each answer is sent once four requests have arrived, so fewer concurrent requests would never end."""
    four, connections = asyncio.Barrier(4), asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0]))
                await four.wait()
                body = b'data: {"choices": [{"text": "w"}]}\n\n' + USAGE + DONE
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()
        connections.release()

    follows = [index - 1 if index % turns else None for index in range(4 * turns)]
    asked = [SampleRequest((1, 2), max_tokens=1, follows=one) for one in follows]
    outcomes: list[Outcome] = []
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(20):
        async with Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "m") as one:
            await closed_loop(one, asked, outcomes, Stop(), concurrency=4)
        for _ in range(4):
            await connections.acquire()
    assert sum(outcome.complete for outcome in outcomes) == 4 * turns


async def test_stop_ends_requests_that_wait_for_a_slot() -> None:
    outcomes: list[Outcome] = []
    stop = Stop()

    def says(*_: object) -> Answer:
        stop.set()
        return Answer([START, piece("1, 2", "stop"), USAGE, DONE])

    waiting = [QUESTION, QUESTION, replace(QUESTION, follows=1)]
    async with scripted_gateway(says) as url, Client(url, "m") as one:
        await open_loop(one, waiting, outcomes, stop, concurrency=1)
    assert [outcome.exact for outcome in outcomes] == [True]


async def test_a_follow_up_waits_for_its_predecessor_and_contains_its_prompt() -> None:
    bodies = []

    def answer(headers: dict[str, str], body: dict[str, Any]) -> Answer:
        bodies.append(body | {"key": headers.get("authorization")})
        text = {"choices": [{"text": "w1 w2", "finish_reason": "length"}]}
        return Answer([START + f"data: {json.dumps(text)}\n\n".encode() + USAGE + DONE])

    turns = [
        SampleRequest((1, 2), max_tokens=3, priority_class="high", tenant="light"),
        SampleRequest((7,), max_tokens=3, follows=0, continues=True),
        SampleRequest((8,), max_tokens=3, follows=1),
    ]
    for loop in (open_loop, partial(closed_loop, concurrency=3)):
        outcomes: list[Outcome] = []
        bodies.clear()
        keys = {"light": "secret"}
        async with (
            scripted_gateway(answer) as url,
            Client(url, "m", tenant_keys=keys, objectives=Objectives(0.5)) as one,
        ):
            await loop(one, turns, outcomes, Stop())
        assert all(outcome.complete for outcome in outcomes)
        assert [(body["max_tokens"], body["ignore_eos"]) for body in bodies] == [(3, True)] * 3
        first, second, third = (body["prompt"] for body in bodies)
        assert (first, third) == ([1, 2], [8])
        assert (second[:2], len(second), second[-1]) == ([1, 2], 2 + 3 + 1, 7), "prompt, answer of 3 tokens, own part"
        assert (bodies[0]["priority"], bodies[0]["key"], bodies[1]["key"]) == ("high", "Bearer secret", None)
        assert all(body["ttft_slo_ms"] == 500 and "tbt_slo_ms" not in body for body in bodies)
