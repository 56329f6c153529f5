"""The figures about Redis measure what they name."""

import signal
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from orcastream.bench.main import main
from orcastream.bench.redis import enqueuing, memory, rate
from orcastream.bench.redis.own_redis import info, own_redis
from orcastream.broker.link import Link
from tests.cli.processes import ProcessWatch, Terminal
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.redis_waiting import wait_until

pytestmark = one_server("embedded")


@pytest.fixture
async def link(redis_server: RedisServer) -> AsyncIterator[Link]:
    async with own_redis(redis_server.url) as (_, link):
        yield link


async def test_a_prompt_takes_four_bytes_per_token_and_little_more(link: Link) -> None:
    short = await memory.waiting(link, 32, 50)
    long = await memory.waiting(link, 4096, 50)
    per_token = (long.bytes_each - short.bytes_each) / (4096 - 32)
    assert 3.9 <= per_token < 5.5, "a queue's accounts do not grow with prompts, but in steps"
    assert 4 * 32 < short.bytes_each < 2000


async def test_a_reply_of_fewer_events_is_smaller(link: Link) -> None:
    single = await memory.finished(link, 120, 1, 20)
    fourfold = await memory.finished(link, 120, 4, 20)
    assert 120 * 3 < fourfold.bytes_each < single.bytes_each / 1.5
    assert await link.call("DBSIZE") == 0, "nothing is left behind"


async def test_every_written_token_is_read(link: Link, redis_server: RedisServer) -> None:
    found = await rate.measure(redis_server.url, link, streams=3, tokens=4, seconds=0.05)
    assert found.events >= 3
    assert found.events % 3 == 0
    assert found.events_per_s > 0
    assert found.server_cpu_s > 0


async def test_served_tokens_are_summed_only_if_a_request_waits(link: Link) -> None:
    for something_waits in (False, True):
        await link.call("CONFIG", "RESETSTAT")
        found = await enqueuing.enqueuing(link, 16, 20, something_waits=something_waits)
        assert found.us_per_call > 0
        assert ("cmdstat_hvals" in await info(link, "commandstats")) is something_waits
        assert await link.call("DBSIZE") == 0, "nothing is left behind"


def test_a_database_that_is_in_use_is_left_alone(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.set("precious", "1")
        assert main(["redis-memory", "--redis-url", redis_server.url]) == 2
        assert client.get("precious") == b"1"
    assert "holds 1 keys; allowed: an empty one" in capsys.readouterr().err


async def test_the_shortest_time_still_measures_something(link: Link, redis_server: RedisServer) -> None:
    found = await rate.measure(redis_server.url, link, streams=1, tokens=1, seconds=1e-9)
    assert found.events == 1
    assert found.server_us_per_event > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_leaves_no_reader_and_no_keys(redis_server: RedisServer, number: signal.Signals) -> None:
    flags = ("--redis-url", redis_server.url, "--seconds", "600")
    with (
        closing(Terminal("-m", "orcastream.cli.main", "bench", "redis-rate", *flags)) as bench,
        redis.Redis.from_url(redis_server.url) as client,
    ):
        pid = bench.process.pid
        wait_until(lambda: any(one["cmd"].startswith("xread") for one in client.client_list()))
        with closing(ProcessWatch(int(Path(f"/proc/{pid}/task/{pid}/children").read_text()))) as reader:
            bench.signal(number)
            assert bench.wait() == 130
            assert reader.gone_within(PATIENCE_S)
        assert client.dbsize() == 0
