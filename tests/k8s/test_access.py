"""The rights that k8s/README.md gives to Redis's users are enough, and KEDA's no more than that."""

import re
from collections.abc import Iterator

import pytest
import redis

from broker.cancel import cancel
from broker.lease import Held
from broker.link import Link
from broker.loss import Watch
from broker.presence import Presence, forget_dead
from broker.reader import ReplyReader
from broker.sweep import Sweeper
from schemas.keys import CLASSES, Keys
from tests.broker.scripted import RETENTION_MS, ScriptedWorker, enqueue, make_request
from tests.k8s.kustomization import K8S
from tests.redis_server import RedisServer

KEYS = Keys("orca-demo")


@pytest.fixture
def users(redis_server: RedisServer) -> Iterator[RedisServer]:
    """The server with the two users; on Redis 6.2 with the right that the page names for it."""
    page = (K8S / "README.md").read_text(encoding="utf-8")
    rights = dict(re.findall(r"^ACL SETUSER (\w+) (.*)$", page, re.MULTILINE))
    assert set(rights) == {"orcastream", "keda", "console"}
    with redis_server.client() as client:
        old = client.info("server")["redis_version"].startswith("6.")
        for user, granted in rights.items():
            words = granted.replace("+client|unblock", "+client") if old else granted
            client.execute_command("ACL", "SETUSER", user, *words.split())
        client.acl_log_reset()
        yield redis_server
        client.acl_deluser(*rights)


def url_of(server: RedisServer, user: str) -> str:
    return server.url.replace("redis://", f"redis://{user}:PASSWORD@")


async def test_the_service_may_do_all_that_it_does(users: RedisServer) -> None:
    url = url_of(users, "orcastream")
    link = await Link.open(url, name="gateway:main")
    worker = await ScriptedWorker(url, KEYS, "w1").connect()
    reader = ReplyReader(url, KEYS, "gateway", retention_ms=RETENTION_MS)
    await reader.start()
    await reader.connected.wait()
    request = make_request()
    enqueued = await enqueue(link, KEYS, request)
    subscription = reader.subscribe(Watch(request.id, "default", enqueued.entry, request))
    presence = Presence(worker.link, KEYS, "w1")
    await presence.beat({"state": "serving"}, ttl_ms=1000)
    job = await worker.take()
    await worker.step(job)
    await worker.leases.renew([Held(job.ref, request.id, request.deadline_ms + RETENTION_MS)])
    await cancel(link, KEYS, request.id)
    await worker.leases.hand_over([job.ref])
    (again,) = await worker.claimer.expired(1)
    job = await worker.open(again)
    await worker.end(job, [worker.next_run(job)])
    updates = [update async for update in subscription]
    await Sweeper(link, KEYS, "gateway", retention_ms=RETENTION_MS).step()
    await forget_dead(link, KEYS, min_idle_ms=0)
    await presence.leave()
    await reader.close()
    await worker.close()
    await link.close()
    assert updates[-1].terminal is not None
    with users.client() as client:
        assert client.acl_log() == []


def test_keda_may_read_the_lengths_and_nothing_else(users: RedisServer) -> None:
    with redis.Redis(port=users.port, username="keda", password="PASSWORD") as keda:
        assert keda.ping()
        assert [keda.xlen(KEYS.requests(name)) for name in CLASSES] == [0, 0, 0, 0]
        for refused in (
            ("XRANGE", KEYS.requests("normal"), "-", "+"),
            ("XLEN", KEYS.dead),
            ("XLEN", KEYS.reply("r1")),
            ("DEL", KEYS.requests("normal")),
            ("INFO",),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                keda.execute_command(*refused)
