"""Two workers around one engine serve in turn, and leave in order."""

from orcastream.bench.telemetry.observed import one_engine
from tests.redis_server import RedisServer, one_server

pytestmark = one_server("embedded")


async def test_both_workers_serve_with_one_engine(redis_server: RedisServer) -> None:
    async with one_engine(redis_server.url) as (unobserved, observed):
        for served in (unobserved, observed, unobserved):
            assert await served.throughput(requests=2, tokens=3) > 0
