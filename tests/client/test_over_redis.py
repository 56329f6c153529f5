"""The client directly over Redis: it posts, follows, continues after a Redis restart, and reposts lost requests."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from itertools import chain, repeat

import pytest

from orcastream.broker.ending import Ender
from orcastream.broker.entry import EntryRef
from orcastream.broker.link import Link
from orcastream.client import (
    AsyncReply,
    Cancelled,
    ClientError,
    Expired,
    Message,
    Refused,
    ReplyConflict,
    ReplyExpired,
    Unavailable,
)
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import Keys
from tests.client.conftest import Connect
from tests.client.test_over_http import lose, text_of
from tests.gateway.conftest import TEXT, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.ports import free_port
from tests.redis_server import RedisServer, durable_binary


async def test_tokens_and_their_text(stage: Stage, connect: Connect) -> None:
    ids = stage.tokenizer.encode(TEXT)
    worker = await stage.worker()
    bare = connect(stage.url).generate([5, 6], max_tokens=50, temperature=0)
    assert [token async for delta in bare for token in delta.tokens] == ids
    assert (await bare.result()).choices[0].text == ""
    reading = connect(stage.url, tokenizer=stage.tokenizer)
    for prompt in ("x", [{"role": "user", "content": "x"}]):
        reply = reading.generate(prompt, priority="low")  # type: ignore[arg-type]
        assert await text_of(reply) == TEXT
        result = await reply.result()
        assert (result.id, result.text, result.choices[0].tokens) == (reply.id, TEXT, tuple(ids))
        assert (result.choices[0].finish_reason, result.usage.completion_tokens) == ("stop", len(ids))
    assert [request.priority_class for request in worker.requests] == ["normal", "low", "low"]
    assert worker.requests[0].payload.max_tokens == 50


async def test_the_text_ends_at_the_stop_string(stage: Stage, connect: Connect) -> None:
    await stage.worker(Answer([stage.tokenizer.encode("eins zwei drei")], group=100, text_length=9))
    reply = connect(stage.url, tokenizer=stage.tokenizer).generate("x", stop=" drei")
    assert await text_of(reply) == (await reply.result()).text == "eins zwei"


@pytest.mark.parametrize("published", [0, 1, 7])
async def test_redis_restarts_in_mid_stream(
    own_redis: Callable[..., RedisServer], stage_of: Callable[[str], Stage], connect: Connect, published: int
) -> None:
    server = own_redis(aof="always")
    stage = stage_of(server.url)
    gate = Gate(published)
    worker = await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    reply = connect(stage.url, tokenizer=stage.tokenizer).generate("x")
    reading = asyncio.create_task(text_of(reply))
    await gate.reached(published)
    await asyncio.to_thread(server.restart)
    await gate.open()
    assert await reading == TEXT
    assert {request.id for request in worker.requests} <= {reply.id}


async def test_a_redis_that_starts_later(
    own_redis: Callable[..., RedisServer], stage_of: Callable[[str], Stage], connect: Connect
) -> None:
    server = own_redis(aof="always")
    stage = stage_of(server.url)
    worker = await stage.worker()
    await asyncio.to_thread(server.kill)
    with pytest.raises(Unavailable) as caught:
        await connect(stage.url, patience_s=0).generate([5]).accepted()
    assert caught.value.code == "unreachable"
    reply = connect(stage.url).generate([5])
    accepting = asyncio.create_task(reply.accepted())
    await asyncio.to_thread(server.start)
    await accepting
    assert (await reply.result()).choices[0].tokens == tuple(stage.tokenizer.encode(TEXT))
    assert len(worker.requests) == 1


async def test_a_redis_that_has_no_memory_for_a_while(stage: Stage, connect: Connect) -> None:
    """Whoever has less patience is told why."""
    await stage.worker()
    link = await Link.open(stage.url)
    await link.call("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(Unavailable, match="Redis takes no requests now: OOM") as caught:
            await connect(stage.url, patience_s=0).generate([5]).accepted()
        assert caught.value.code == "unreachable"
        await link.call("CONFIG", "RESETSTAT")
        reply = connect(stage.url).generate([5])
        accepting = asyncio.create_task(reply.accepted())
        await eventually(lambda: refused_for_memory(link))
        assert not accepting.done()
    finally:
        await link.call("CONFIG", "SET", "maxmemory", 0)
    await accepting
    assert (await reply.result()).choices[0].tokens == tuple(stage.tokenizer.encode(TEXT))
    await link.close()


async def refused_for_memory(link: Link) -> bool:
    counts = await link.call("INFO", "errorstats")
    return b"errorstat_OOM" in counts or b"errorstat_ERR" in counts  # ERR: in a script of Redis 6.2


async def test_a_closed_client_posts_nothing(connect: Connect) -> None:
    """A Redis that starts later gets no request that no caller waits for."""
    client = connect(f"redis://127.0.0.1:{free_port()}", patience_s=3600)
    accepting = asyncio.create_task(client.generate([5]).accepted())
    await asyncio.sleep(0)
    await client.aclose()
    with pytest.raises(ClientError) as caught:
        await accepting
    assert caught.value.code == "closed"


async def test_a_redis_that_restarts_empty(
    own_redis: Callable[..., RedisServer], stage_of: Callable[[str], Stage], connect: Connect
) -> None:
    """No file: all accepted requests are gone, and only the client knows them."""
    server = own_redis()
    stage = stage_of(server.url)
    gates = chain([Gate(4)], repeat(Gate()))
    worker = await stage.worker(lambda _: Answer([stage.tokenizer.encode(TEXT)], gate=next(gates)))
    reply = connect(stage.url, tokenizer=stage.tokenizer).generate("x")
    pieces = [(await anext(reply)).text]
    worker._answers.clear()
    await asyncio.to_thread(server.restart)
    assert "".join([*pieces, await text_of(reply)]) == TEXT
    assert [request.id for request in worker.requests] == [reply.id] * 2


async def end_as_lost(stage: Stage, request_id: str) -> None:
    """End a request as a gateway does whose entry Redis lost."""
    link = await Link.open(stage.url)
    mark = await link.call("GET", stage.keys.seen(request_id))
    await lose(stage)
    ender = Ender(stage.keys, "gateway", retention_ms=60_000)
    await ender.end(link, request_id, ref=EntryRef.parse(mark), code=ErrorCode.LOST, message="lost")
    await link.close()


@pytest.mark.parametrize("same", [True, False], ids=["the same answer", "another answer"])
async def test_a_request_that_ended_as_lost_is_posted_again(stage: Stage, connect: Connect, same: bool) -> None:
    ids = stage.tokenizer.encode(TEXT)
    answers = iter([Answer([ids], gate=Gate(4)), Answer([ids if same else ids[::-1]])])
    worker = await stage.worker(lambda _: next(answers))
    reply = connect(stage.url, tokenizer=stage.tokenizer).generate("x")
    pieces = [(await anext(reply)).text]
    worker._answers.clear()
    await end_as_lost(stage, reply.id)
    if same:
        assert "".join([*pieces, await text_of(reply)]) == TEXT
    else:
        with pytest.raises(ReplyConflict):
            await reply.result()
    assert len(worker.requests) == 2


async def test_a_request_goes_into_its_lane(stage: Stage, connect: Connect) -> None:
    keys = Keys(stage.keys.model, queue_lanes=4)
    lanes = [keys.in_lane(lane) for lane in range(4)]
    replies = [connect(stage.url, queue_lanes=4).generate([5], request_id=f"order-{number}") for number in range(4)]
    for reply in replies:
        await reply.accepted()
    expected = Counter(keys.lane_of(reply.id) for reply in replies)
    assert len(expected) > 1
    link = await Link.open(stage.url)
    assert [await link.call("XLEN", lane.requests("normal")) for lane in lanes] == [expected[lane] for lane in range(4)]
    await link.close()


async def test_the_same_id_is_one_request(stage: Stage, connect: Connect) -> None:
    worker = await stage.worker()
    for _ in range(2):
        reply = connect(stage.url, tokenizer=stage.tokenizer).generate("x", request_id="order-17")
        assert ((await reply.result()).text, reply.id) == (TEXT, "order-17")
    with pytest.raises(Refused) as caught:
        await connect(stage.url, tenant="other").generate([5], request_id="order-17").accepted()
    assert caught.value.code == "id_in_use"
    assert len(worker.requests) == 1
    link = await Link.open(stage.url)
    await link.call("DEL", stage.keys.reply("order-17"))
    await link.close()
    with pytest.raises(ReplyExpired):
        await connect(stage.url).generate([5], request_id="order-17").result()


async def test_cancelling_running_and_waiting_requests(stage: Stage, connect: Connect) -> None:
    client = connect(stage.url)
    waiting = client.generate([5])
    await waiting.accepted()
    assert await waiting.cancel()
    with pytest.raises(Cancelled):
        await waiting.result()
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=Gate(3)))
    running = client.generate([5])
    assert not await running.cancel()
    await anext(running)
    assert await running.cancel()
    with pytest.raises(Cancelled) as caught:
        await running.result()
    assert (caught.value.code, caught.value.request_id) == ("cancelled", running.id)
    assert not await running.cancel()


async def test_a_deadline_ends_a_request(stage: Stage, connect: Connect) -> None:
    served = await stage.gateway(sweep_s=0.05)
    with pytest.raises(Expired):
        await connect(stage.url).generate([5], timeout_s=0.1).result()
    assert not served.gateway.shutdown.stopping


async def test_a_stopped_process_reads_what_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch, stage: Stage, connect: Connect
) -> None:
    """Timers are due before anything is read, although the reply may have ended in time."""
    ids, gate, loop = stage.tokenizer.encode(TEXT), Gate(2), asyncio.get_running_loop()
    await stage.worker(Answer([ids], gate=gate))
    reply = connect(stage.url).generate([5])
    first = [token for _ in range(2) for token in (await anext(reply)).tokens]
    reading = asyncio.create_task(tokens_of(reply))
    await asyncio.sleep(0)
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + 3600)  # SIGSTOP, an hour, SIGCONT
    await gate.open()
    assert [*first, *await reading] == ids


async def tokens_of(reply: AsyncReply) -> list[int]:
    """Return the rest of a reply's tokens."""
    return [token async for delta in reply for token in delta.tokens]


async def test_errors_name_the_faulty_parameter(stage: Stage, connect: Connect) -> None:
    client, with_text = connect(stage.url), connect(stage.url, tokenizer=stage.tokenizer)
    for asking, field in (
        (client.generate("text"), "prompt"),
        (with_text.generate("Count \ud83d"), "prompt"),
        (with_text.generate([Message(role="user", content="\ud83d")]), "messages.0.content"),
        (client.generate([5], temperature=-1), "temperature"),
        (client.generate([5], on_disconnect="cancel"), "on_disconnect"),
        (client.generate([5], durable=True), "durable"),
    ):
        with pytest.raises(Refused) as caught:
            await asking.accepted()
        assert caught.value.field == field
    link = await Link.open(stage.url)
    assert not await link.call("XLEN", stage.keys.requests("normal"))
    await link.close()


async def test_a_durable_request_is_on_disk_when_it_is_accepted(
    tmp_path_factory: pytest.TempPathFactory, stage_of: Callable[[str], Stage], connect: Connect
) -> None:
    binary = durable_binary()
    if binary is None:
        pytest.skip("no server with WAITAOF found: Redis 7.2 or later, or Valkey")
    server = RedisServer(binary, tmp_path_factory.mktemp("durable"), aof="no")
    server.start()
    try:
        stage = stage_of(server.url)
        worker = await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=Gate(0)))
        reply = connect(stage.url).generate([5], durable=True)
        accepting = asyncio.create_task(reply.accepted())

        async def claimed() -> bool:
            return bool(worker.requests)

        await eventually(claimed)
        assert not accepting.done()
        with server.client() as client:
            client.config_set("appendfsync", "always")
            client.set("any", "write")
        await accepting
    finally:
        server.kill()
