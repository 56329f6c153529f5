"""A client notices every way in which an answer can fail to come."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from bench.serve.client import LOST, UNREADABLE, Client
from bench.serve.loops import Stop, closed_loop, open_loop
from bench.figures.outcome import Outcome
from bench.serve.questions import Group, Question, Workload

QUESTION = Question("Count", "1, 2")
START = b": worker w1 epoch 5\n"
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"


def piece(text: str, reason: str | None = None) -> bytes:
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}, 'finish_reason': reason}]})}\n\n".encode()


def client(*parts: bytes, status: int = 200, hang: bool = False, timeout_s: float = 10.0) -> Client:
    """A client of a gateway that says `parts`, and then ends the stream or hangs."""

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            yield part
        if hang:
            await asyncio.Event().wait()

    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=body()))
    return Client("http://gateway", "orca-demo", transport=transport, timeout_s=timeout_s)


async def ask(client: Client) -> Outcome:
    async with client:
        return await client.ask(QUESTION)


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
    ],
)
async def test_what_is_lost_or_refused_is_named(parts: tuple[bytes, ...], status: int, error: str) -> None:
    outcome = await ask(client(*parts, status=status))
    assert outcome.error == error
    assert not outcome.complete
    assert not outcome.exact


async def test_an_answer_that_never_ends() -> None:
    outcome = await ask(client(START, piece("1,"), hang=True, timeout_s=0.05))
    assert outcome.error == "no end in time"


async def test_a_gateway_that_is_not_there() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    outcome = await ask(Client("http://gateway", "m", transport=httpx.MockTransport(refuse)))
    assert outcome.error == "connection: ConnectError"


async def test_a_request_that_waits_for_a_place_has_arrived_all_the_same() -> None:
    outcomes: list[Outcome] = []
    workload = Workload([Group(1, [QUESTION])])
    async with client(START, piece("1, 2", "stop"), USAGE, DONE) as one:
        await open_loop(one, workload, [0.0, 0.0, 0.0], outcomes, Stop(), concurrency=1)
    assert len(outcomes) == 3
    assert all(outcome.exact for outcome in outcomes)
    assert len({outcome.arrived_s for outcome in outcomes}) == 1
    firsts = [outcome.pieces_s[0] for outcome in outcomes]
    assert firsts == sorted(firsts)


async def test_stop_ends_the_load_and_not_what_is_under_way() -> None:
    outcomes: list[Outcome] = []
    stop = Stop()

    class StopsAtOnce(Workload):
        def draw(self) -> Question:
            stop.set()
            return super().draw()

    workload = StopsAtOnce([Group(1, [QUESTION])])
    async with client(START, piece("1, 2", "stop"), USAGE, DONE) as one:
        await open_loop(one, workload, [0.0, 3600.0], outcomes, stop)
        await closed_loop(one, workload, concurrency=2, duration_s=3600, outcomes=outcomes, stop=stop)
    assert [outcome.exact for outcome in outcomes] == [True]
