"""The client with gateways: its results, its behavior when gateways fail, and its errors."""

import asyncio
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count, repeat
from typing import Any

import httpx
import pytest

from orcastream.broker.link import Link
from orcastream.client import (
    AsyncClient,
    Cancelled,
    Client,
    ClientError,
    InvalidRequest,
    QueueFull,
    Refused,
    ReplyConflict,
    Unavailable,
    served_models,
)
from orcastream.schemas.keys import GROUP
from tests.client.conftest import Connect
from tests.client.cutting_proxy import CuttingProxy
from tests.gateway.conftest import MODEL, TEXT, Served, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate

NOWHERE = "http://127.0.0.1:1"


async def text_of(reply: Any) -> str:
    """Return the text of a reply's first choice, piece by piece."""
    return "".join([delta.text async for delta in reply if delta.choice == 0])


async def test_closing_does_not_wait_for_a_retry_pause() -> None:
    """A retrying request ends as soon as its client is closed, even with a long `Retry-After`."""
    client = AsyncClient(NOWHERE, MODEL, patience_s=3600)
    client._transport._http = httpx.AsyncClient(  # type: ignore[attr-defined]  # over HTTP it has one
        transport=httpx.MockTransport(lambda _: httpx.Response(503, headers={"Retry-After": "600"}))
    )
    reply = client.generate("x")
    accepting, cancelling = asyncio.create_task(reply.accepted()), asyncio.create_task(reply.cancel())
    await asyncio.sleep(0.1)
    await client.aclose()
    async with asyncio.timeout(5):
        for task in (accepting, cancelling, asyncio.create_task(client.generate("y").result())):
            with pytest.raises(ClientError) as caught:
                await task
            assert caught.value.code == "closed"


def test_without_asyncio_a_closed_client_raises() -> None:
    client = Client(NOWHERE, MODEL, patience_s=3600)
    reply, other = client.generate("x"), client.generate("x")
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(reply.result)
        time.sleep(0.5)
        client.close()
        assert getattr(reading.exception(timeout=5), "code", None) == "closed"
    for ask in (other.result, other.accepted, other.cancel, lambda: next(other), client.generate("x").result):
        with pytest.raises(ClientError) as caught:
            ask()
        assert caught.value.code == "closed"
    other.close()
    client.close()


def test_a_forked_process_gets_an_error_from_its_parents_client() -> None:
    """The thread with the event loop stays in the parent: the child's requests would never be answered."""
    program = f"""
import os, signal
from orcastream.client import Client
with Client({NOWHERE!r}, {MODEL!r}) as client:
    if os.fork():
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    signal.alarm(20)
    try:
        client.generate("x").result()
    except RuntimeError as error:
        print(error)
print("left", flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"The client belongs to process \d+, which was forked: .*\nleft\n", done.stdout)


async def test_listing_models(stage: Stage) -> None:
    gateway = await stage.gateway(api_keys={"secret": "blue"})
    assert await served_models(gateway.url, api_key="secret") == [MODEL]
    for url, key, error, code in (
        (gateway.url, "wrong", Refused, "invalid_api_key"),
        (f"{gateway.url}/elsewhere", "secret", Refused, None),
        (NOWHERE, None, Unavailable, "unreachable"),
    ):
        with pytest.raises(error) as caught:
            await served_models(url, api_key=key)
        assert code in (None, caught.value.code)
    with pytest.raises(InvalidRequest):
        await served_models("ftp://x")


async def test_text_chat_and_token_ids(stage: Stage, connect: Connect) -> None:
    worker = await stage.worker()
    client = connect((await stage.gateway()).url)
    for prompt in ("x", [{"role": "user", "content": "x"}], [5, 6]):
        reply = client.generate(prompt, max_tokens=50, temperature=0, stop="nowhere", priority="high")  # type: ignore[arg-type]
        assert await text_of(reply) == TEXT
        result = await reply.result()
        assert (result.id, result.text) == (reply.id, TEXT)
        assert result.choices[0].finish_reason == "stop"
        assert result.usage.completion_tokens == len(stage.tokenizer.encode(TEXT))
    assert [request.priority_class for request in worker.requests] == ["high"] * 3
    assert worker.requests[2].payload.prompt == (5, 6)
    assert worker.requests[0].payload.stop == ("nowhere",)


async def test_choices_are_distinguished(stage: Stage, connect: Connect) -> None:
    choices = ["eins", "zwei", "drei"]
    await stage.worker(Answer([stage.tokenizer.encode(text) for text in choices]))
    reply = connect((await stage.gateway()).url).generate("x", n=3)
    pieces = [delta async for delta in reply]
    assert ["".join(one.text for one in pieces if one.choice == number) for number in range(3)] == choices
    assert [choice.text for choice in (await reply.result()).choices] == choices


async def test_without_asyncio(stage: Stage) -> None:
    await stage.worker()
    served = await stage.gateway()

    def ask() -> None:
        with Client([served.url, NOWHERE], MODEL) as client:
            for _ in range(3):
                with client.generate("x") as reply:
                    reply.accepted()
                    assert "".join(delta.text for delta in reply) == TEXT
                    assert reply.result().text == TEXT
                    assert not reply.cancel()
            with pytest.raises(Refused, match="temperature"):
                client.generate("x", temperature=-1).result()

    await asyncio.to_thread(ask)


async def test_connections_cut_after_every_byte(stage: Stage, connect: Connect) -> None:
    """Each connection ends some bytes later than the previous one, starting within the head of the response."""
    await stage.worker(lambda request: Answer([stage.tokenizer.encode(TEXT)] * request.payload.n))
    served = await stage.gateway(disconnect_grace_s=60)
    async with CuttingProxy(int(served.url.rpartition(":")[2]), count(600, 37)) as proxy:
        reply = connect(proxy.url).generate("x", n=2)
        pieces = [delta async for delta in reply]
        for choice in range(2):
            assert "".join(one.text for one in pieces if one.choice == choice) == TEXT
        assert [choice.text for choice in (await reply.result()).choices] == [TEXT, TEXT]
    assert proxy.num_cut > 10


async def test_unreachable_gateways_are_skipped(stage: Stage, connect: Connect) -> None:
    await stage.worker()
    client = connect(NOWHERE, (await stage.gateway()).url, NOWHERE)
    assert [(await client.generate("x").result()).text for _ in range(3)] == [TEXT] * 3


async def test_a_stopping_gateway_hands_over(stage: Stage, connect: Connect) -> None:
    gate = Gate(4)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    gateways = [await stage.gateway(disconnect_grace_s=60) for _ in range(2)]
    reply = connect(*(served.url for served in gateways)).generate("x")
    pieces = [(await anext(reply)).text]
    serving = next(served for served in gateways if served.model.readers._here)
    serving.gateway.begin_stop()
    await gate.open()
    assert "".join([*pieces, await text_of(reply)]) == TEXT
    assert serving.gateway.shutdown.stopping


async def test_the_same_id_is_one_request(stage: Stage, connect: Connect) -> None:
    worker = await stage.worker()
    served = await stage.gateway()
    for _ in range(2):
        reply = connect(served.url).generate("x", request_id="order-17")
        assert (await reply.result()).text == TEXT
        assert reply.id == "cmpl-order-17"
    assert len(worker.requests) == 1


async def test_cancelling(stage: Stage, connect: Connect) -> None:
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=Gate(3)))
    reply = connect((await stage.gateway()).url).generate("x")
    assert not await reply.cancel()
    await anext(reply)
    assert await reply.cancel()
    with pytest.raises(Cancelled) as caught:
        await reply.result()
    assert (caught.value.code, caught.value.request_id) == ("cancelled", reply.id)
    with pytest.raises(Cancelled):
        await anext(reply)


async def test_a_full_queue_is_waited_for(stage: Stage, connect: Connect) -> None:
    gate = Gate(1)
    await stage.worker(lambda _: Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served = await stage.gateway(max_queue_depth=1)
    first = connect(served.url).generate("x")
    await first.accepted()
    with pytest.raises(QueueFull) as caught:
        await connect(served.url, patience_s=0.5).generate("x").result()  # below the Retry-After of a second
    assert (caught.value.code, caught.value.status) == ("queue_full", 429)
    second = asyncio.create_task(connect(served.url).generate("x").result())
    await gate.open()
    assert (await first.result()).text == TEXT
    assert (await second).text == TEXT


async def test_errors_name_the_faulty_parameter(stage: Stage, connect: Connect) -> None:
    await stage.worker()
    served = await stage.gateway(api_keys={"sk-a": "alpha"})
    with pytest.raises(Refused) as caught:
        await connect(served.url).generate("x").result()
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    client = connect(served.url, api_key="sk-a")
    with pytest.raises(Refused, match="durable") as caught:
        await client.generate("x", durable=True).accepted()
    assert (caught.value.status, caught.value.field) == (400, "durable")
    with pytest.raises(Refused, match="surrogates") as caught:
        await client.generate("Count \ud83d").accepted()
    assert (caught.value.status, caught.value.field) == (400, "prompt")
    with pytest.raises(InvalidRequest, match="strem"):
        client.generate("x", strem=True)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match="request_id"):
        client.generate("x", request_id="no id")
    assert (await client.generate("x").result()).text == TEXT


async def test_no_gateway_answers(stage: Stage, connect: Connect) -> None:
    with pytest.raises(Unavailable) as caught:
        await connect(NOWHERE, patience_s=0.2).generate("x").result()
    assert caught.value.code == "unreachable"
    served = await stage.gateway()
    with pytest.raises(Unavailable) as caught:
        await connect(served.url, patience_s=0.2).generate("x").result()
    assert (caught.value.code, caught.value.status) == ("no_worker", 503)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"urls": []}, "urls"),
        ({"urls": ["http://a", "redis://b"]}, "urls"),
        ({"urls": ["redis://a", "redis://b"]}, "urls"),
        ({"urls": "ftp://a"}, "urls"),
        ({"urls": "http://"}, "urls"),
        ({"urls": "http://user:pass@a"}, "urls"),
        ({"urls": "http://a", "namespace": "x"}, "namespace"),
        ({"urls": "http://a", "tenant": "x"}, "tenant"),
        ({"urls": "redis://a", "api_key": "x"}, "api_key"),
        ({"urls": "redis://a", "model": "no name"}, "model"),
    ],
)
async def test_invalid_client_arguments_are_refused(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        AsyncClient(**{"model": MODEL, **arguments})
    assert caught.value.field == field


async def lose(stage: Stage) -> None:
    """Remove the only entry of the queue, as if Redis had restarted with less data."""
    link = await Link.open(stage.url)
    stream = stage.keys.requests("normal")
    entry_id = (await link.call("XRANGE", stream, "-", "+"))[0][0]
    await link.call_many([("XACK", stream, GROUP, entry_id), ("XDEL", stream, entry_id)])
    await link.close()


async def leave_the_accepting_gateway(gateways: list[Served]) -> None:
    """Stop the gateway that accepted the request, so that it no longer vouches for it; its client switches gateways."""
    serving = next(served for served in gateways if served.model.readers._here)
    other = next(served for served in gateways if served is not serving)
    serving.gateway.begin_stop()
    for task in serving.model._tasks:
        task.cancel()

    async def followed() -> bool:
        return bool(other.model.readers._here)

    await eventually(followed)


@pytest.mark.parametrize("everything", [False, True], ids=["entry", "everything"])
async def test_a_request_that_redis_lost_is_posted_again(stage: Stage, connect: Connect, everything: bool) -> None:
    """Only the client knows the request; the recomputed answer is delivered from the client's position."""
    gates = chain([Gate(4)], repeat(Gate()))
    ids = stage.tokenizer.encode(TEXT)
    worker = await stage.worker(lambda _: Answer([ids], gate=next(gates)))
    settings = {"disconnect_grace_s": 60, "loss_check_s": 0.2, "require_worker": False}
    gateways = [await stage.gateway(**settings) for _ in range(2)]
    reply = connect(*(served.url for served in gateways)).generate("x")
    pieces = [(await anext(reply)).text]
    rest = asyncio.create_task(text_of(reply))
    await leave_the_accepting_gateway(gateways)
    worker._answers.clear()
    if everything:
        link = await Link.open(stage.url)
        await link.call("FLUSHALL")
        await link.close()
    else:
        await lose(stage)
    assert "".join([*pieces, await rest]) == TEXT
    assert len(worker.requests) == 2


async def test_an_answer_that_differs_from_the_delivered_one_is_a_conflict(stage: Stage, connect: Connect) -> None:
    answers = iter([Answer([stage.tokenizer.encode(TEXT)], gate=Gate(4)), Answer([stage.tokenizer.encode("other")])])
    worker = await stage.worker(lambda _: next(answers))
    gateways = [await stage.gateway(disconnect_grace_s=60, loss_check_s=0.2) for _ in range(2)]
    reply = connect(*(served.url for served in gateways)).generate("x")
    await anext(reply)
    rest = asyncio.create_task(reply.result())
    await leave_the_accepting_gateway(gateways)
    worker._answers.clear()
    await lose(stage)
    with pytest.raises(ReplyConflict) as caught:
        await rest
    assert caught.value.code == "reply_conflict"
