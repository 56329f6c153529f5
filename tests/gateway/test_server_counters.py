"""What a gateway reports of the Redis server's own counters is what happened while it looked."""

from collections.abc import Callable
from functools import partial

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData, NumberDataPoint

from orcastream.broker.link import Link
from orcastream.broker.server_state import read_server_state
from orcastream.gateway.metrics import GatewayMetrics
from orcastream.telemetry.names import REDIS_EVICTED, REDIS_SLOW
from tests.redis_server import RedisServer


class Seen:
    """The metrics of a gateway, and the servers that it looks at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reader = InMemoryMetricReader()
        provider = MeterProvider([self._reader], shutdown_on_exit=False)
        monkeypatch.setattr("orcastream.telemetry.instruments.get_meter", provider.get_meter)
        self._metrics = GatewayMetrics(["m"])

    async def look_at(self, server: RedisServer) -> dict[str, float]:
        """Return the totals that are collected after a look at this server."""
        link = await Link.open(server.url)
        try:
            self._metrics.server_state(await read_server_state(link))
        finally:
            await link.close()
        data = self._reader.get_metrics_data()
        assert isinstance(data, MetricsData)
        metrics = [metric for of in data.resource_metrics for scope in of.scope_metrics for metric in scope.metrics]
        return {
            metric.name: point.value
            for metric in metrics
            if metric.name in (REDIS_SLOW.name, REDIS_EVICTED.name)
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint)
        }


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Seen]:
    """Return what starts a gateway, as a process of its own would."""
    return partial(Seen, monkeypatch)


@pytest.fixture
def seen(start: Callable[[], Seen]) -> Seen:
    return start()


def slow_commands(server: RedisServer, number: int) -> None:
    """Have the server count this many slow commands."""
    with server.client() as client:
        client.config_set("slowlog-log-slower-than", 0)
        for _ in range(number - 1):  # the command that ends this is one, too, or the one that began it
            client.ping()
        client.config_set("slowlog-log-slower-than", -1)


async def test_a_failover_reports_nothing_that_the_new_master_counted_before(
    own_redis: Callable[..., RedisServer], seen: Seen
) -> None:
    first, second = own_redis(), own_redis()
    slow_commands(second, 500)
    assert (await seen.look_at(first))[REDIS_SLOW.name] == 0
    assert (await seen.look_at(second))[REDIS_SLOW.name] == 0
    slow_commands(second, 20)
    assert 19 <= (await seen.look_at(second))[REDIS_SLOW.name] <= 21
    assert 19 <= (await seen.look_at(first))[REDIS_SLOW.name] <= 21


async def test_a_gateway_that_starts_again_begins_with_0(
    own_redis: Callable[..., RedisServer], start: Callable[[], Seen]
) -> None:
    """Behind the same target its series continue: a total above the one before would be an increase."""
    first, second = own_redis(), own_redis()
    slow_commands(second, 500)
    before, again = start(), start()
    assert [(await before.look_at(server))[REDIS_SLOW.name] for server in (first, second)] == [0, 0]
    assert (await again.look_at(second))[REDIS_SLOW.name] == 0


async def test_clearing_the_slow_log_makes_no_command_slow(own_redis: Callable[..., RedisServer], seen: Seen) -> None:
    """The server goes on numbering the entries."""
    server = own_redis()
    await seen.look_at(server)
    slow_commands(server, 500)
    before = (await seen.look_at(server))[REDIS_SLOW.name]
    assert before >= 499
    with server.client() as client:
        client.slowlog_reset()
    assert (await seen.look_at(server))[REDIS_SLOW.name] == before
    slow_commands(server, 20)
    assert 19 <= (await seen.look_at(server))[REDIS_SLOW.name] - before <= 22


async def test_counters_that_were_reset_count_on(own_redis: Callable[..., RedisServer], seen: Seen) -> None:
    server = own_redis(options=["--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru"])

    def evict(number: int) -> int:
        """Write these many values, and return how many keys the server has evicted since its counters were reset."""
        with server.client() as client:
            for _ in range(number):
                client.set(f"key-{client.incr('last')}", b"x" * 100_000)
            evicted: int = client.info("stats")["evicted_keys"]
            return evicted

    await seen.look_at(server)
    first = evict(200)
    assert (await seen.look_at(server))[REDIS_EVICTED.name] == first > 10
    with server.client() as client:
        client.config_resetstat()
    assert (await seen.look_at(server))[REDIS_EVICTED.name] == first
    while not (second := evict(10)):  # the server may have freed more than it needed before
        pass
    assert (await seen.look_at(server))[REDIS_EVICTED.name] == first + second > first
