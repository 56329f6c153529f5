"""Gateway and workers that find Redis through sentinels, while the replica is promoted."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from orcastream.demo.prompts import LONG_COUNT
from orcastream.schemas.keys import Keys
from tests.path.gateway_process import GatewayProcess
from tests.path.stream import Stream
from tests.patience import PATIENCE_S
from tests.redis_sentinels import Sentinels
from tests.redis_server import one_server
from tests.worker.worker_process import MODEL, WorkerProcess

pytestmark = one_server("system")

PROMPT, ANSWER = LONG_COUNT
BODY = {"model": "orca-demo", "prompt": PROMPT, "max_tokens": 2000, "temperature": 0, "timeout": 120}


class Site:
    """Everything that takes part in one failover."""

    def __init__(self, redis_binary: str, directory: Path) -> None:
        self.redis = Sentinels(redis_binary, directory)
        self._directory = directory
        self._processes: list[Any] = []

    def worker(self) -> WorkerProcess:
        """Start a worker and wait until it serves."""
        number = len(self._processes)
        master = next(one for one in self.redis.servers if one.port == self.redis.master_port())
        worker = WorkerProcess(master.url, self._directory / f"worker{number}.log", redis_url=self.redis.url)
        self._processes.append(worker)
        worker.wait_serving()
        return worker

    def gateway(self) -> GatewayProcess:
        """Start a gateway."""
        log = self._directory / f"gateway{len(self._processes)}.log"
        gateway = GatewayProcess(self.redis.url, log, redis_patience_s=PATIENCE_S)
        self._processes.append(gateway)
        return gateway

    def stop(self) -> None:
        """Kill all remaining processes."""
        for process in self._processes:
            process.kill()
        self.redis.stop()


@pytest.fixture
def site(redis_binary: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(redis_binary, tmp_path)
    site.redis.start()
    yield site
    site.stop()


def master_killed(site: Site) -> None:
    site.redis.servers[0].kill()


def master_killed_without_its_last_writes(site: Site) -> None:
    site.redis.stop_replication()
    with site.redis.servers[0].client() as master:
        [log] = [key for key in master.keys("orca:reply:*") if master.type(key) == b"stream"]
        lost: Any = master.xlen(log) + 10
        while master.xlen(log) < lost:
            pass
    site.redis.servers[0].kill()


def replica_promoted(site: Site) -> None:
    site.redis.promote()


def master_frozen_until_the_replica_is_promoted(site: Site) -> None:
    site.redis.servers[0].freeze()
    site.redis.wait_promoted()
    site.redis.servers[0].thaw()


@pytest.mark.parametrize(
    "fault",
    [
        master_killed,
        master_killed_without_its_last_writes,
        master_frozen_until_the_replica_is_promoted,
        replica_promoted,
    ],
)
def test_a_stream_and_the_service_continue_after_a_promotion(site: Site, fault: Callable[[Site], None]) -> None:
    site.worker()
    gateway = site.gateway()
    gateway.wait_ready()
    stream = Stream().post(gateway.url, BODY, {30: lambda _: fault(site)})
    site.redis.wait_promoted()
    assert stream.error is None
    assert (stream.text.strip(), stream.finish_reason, stream.done) == (ANSWER, "stop", True)
    assert Stream().post(gateway.url, BODY, {}).text.strip() == ANSWER


def test_an_accepted_request_that_the_new_master_never_had_is_enqueued_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCASTREAM_REQUIRE_WORKER", "false")
    gateway = site.gateway()
    gateway.wait_ready()
    site.redis.stop_replication()
    body = {**BODY, "stream": True}
    with httpx.stream("POST", f"{gateway.url}/v1/completions", json=body, timeout=PATIENCE_S) as response:
        request_id = response.headers["x-request-id"]
        with site.redis.servers[1].client() as replica:
            assert not replica.exists(Keys(MODEL).seen(request_id))
        site.redis.servers[0].kill()
        site.redis.wait_promoted()
        site.worker()
        assert response.read().endswith(b"data: [DONE]\n\n")
