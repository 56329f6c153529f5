"""Fixtures of the broker's tests: keys, links, workers, readers, a proxy; all closed at the end of the test."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from orcastream.broker.link import Link
from orcastream.broker.reader import ReplyReader
from orcastream.broker.second_read import SecondReads
from orcastream.schemas.keys import Keys
from tests.broker.proxy import LossyProxy
from tests.broker.scripted import RETENTION_MS, Job, ScriptedWorker, enqueue, make_request
from tests.redis_cluster import RedisCluster
from tests.redis_server import RedisServer

OpenLink = Callable[..., Awaitable[Link]]
MakeWorker = Callable[..., Awaitable[ScriptedWorker]]
MakeReader = Callable[..., Awaitable[ReplyReader]]
Begin = Callable[..., Awaitable[tuple[ScriptedWorker, Job]]]


@pytest.fixture
def keys() -> Keys:
    """Keys of the served model."""
    return Keys("demo")


@pytest.fixture
async def open_link() -> AsyncIterator[OpenLink]:
    """A factory of links."""
    links: list[Link] = []

    async def open_one(url: str, **options: Any) -> Link:
        link = await Link.open(url, **options)
        links.append(link)
        return link

    yield open_one
    for link in links:
        await link.close()


@pytest.fixture
async def link(redis_server: RedisServer, open_link: OpenLink) -> Link:
    """A link to the shared server."""
    return await open_link(redis_server.url)


@pytest.fixture
async def make_worker(keys: Keys) -> AsyncIterator[MakeWorker]:
    """A factory of connected scripted workers: `make_worker(url, name, salt=…)`."""
    workers: list[ScriptedWorker] = []

    async def make(url: str, name: str, **options: int) -> ScriptedWorker:
        worker = await ScriptedWorker(url, keys, name, **options).connect()
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        await worker.close()


@pytest.fixture
def begin(redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker) -> Begin:
    """A request claimed by worker `w1`, with its first tokens published: `worker, job = await begin(2, n=1)`."""

    async def begin_one(num_tokens: int = 0, **changes: Any) -> tuple[ScriptedWorker, Job]:
        await enqueue(link, keys, make_request(**changes))
        worker = await make_worker(redis_server.url, "w1")
        job = await worker.take()
        if num_tokens:
            await worker.step(job, num_tokens)
        return worker, job

    return begin_one


@pytest.fixture
async def make_reader(keys: Keys) -> AsyncIterator[MakeReader]:
    """A factory of started reply readers."""
    readers: list[ReplyReader] = []

    async def make(url: str, who: str = "gateway", **options: Any) -> ReplyReader:
        reader = ReplyReader(url, keys, who, retention_ms=RETENTION_MS, **options)
        readers.append(reader)
        await reader.start()
        await reader.connected.wait()
        return reader

    yield make
    for reader in readers:
        await reader.close()


@pytest.fixture
def always_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read of several logs is sent with a second one."""
    monkeypatch.setattr(SecondReads, "is_due", lambda _, num_logs: num_logs > 1)


@pytest.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[LossyProxy]:
    """A lossy proxy in front of the shared server."""
    lossy = LossyProxy(redis_server.port)
    await lossy.listen()
    yield lossy
    await lossy.refuse()


@pytest.fixture(scope="session")
def _running_cluster(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three nodes for the tests of this folder, which leave all nodes alive and every slot served."""
    cluster = RedisCluster(redis_binary, tmp_path_factory.mktemp("cluster"))
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(_running_cluster: RedisCluster) -> RedisCluster:
    """An empty cluster; its slots may be on any node."""
    _running_cluster.flush()
    return _running_cluster
