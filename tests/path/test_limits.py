"""The concurrency of a tenant with real processes: a slot is held and released, although workers are killed."""

import json
import time
from pathlib import Path
from typing import Any

import httpx

from orcastream.demo.prompts import LONG_COUNT
from orcastream.gateway.admission.api_key import Grant, digest, grant_text
from tests.path.gateway_process import GatewayProcess
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.worker.worker_process import WorkerProcess

pytestmark = one_server("system")

PROMPT, _ = LONG_COUNT
BODY: dict[str, Any] = {"model": "orca-demo", "prompt": PROMPT, "temperature": 0, "timeout": 120}
HEADERS = {"Authorization": "Bearer key"}


def ask(gateway: GatewayProcess, **changes: Any) -> httpx.Response:
    return httpx.post(f"{gateway.url}/v1/completions", json={**BODY, **changes}, headers=HEADERS, timeout=PATIENCE_S)


def test_a_slot_is_held_through_a_takeover_and_released_at_the_end(redis_server: RedisServer, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({digest("key"): json.loads(grant_text(Grant(tenant="alpha", max_concurrency=1)))}))
    workers = [WorkerProcess(redis_server.url, tmp_path / f"worker{number}.log") for number in range(2)]
    gateways = [
        GatewayProcess(redis_server.url, tmp_path / f"gateway{number}.log", api_keys_file=keys) for number in range(2)
    ]
    try:
        names = {worker.wait_serving(): worker for worker in workers}
        for gateway in gateways:
            gateway.wait_ready()
        body = {**BODY, "max_tokens": 1000, "stream": True}
        with httpx.stream(
            "POST", f"{gateways[0].url}/v1/completions", json=body, headers=HEADERS, timeout=PATIENCE_S
        ) as stream:
            lines = stream.iter_lines()
            served_by = next(line for line in lines if any(name in line for name in names))
            next(worker for name, worker in names.items() if name in served_by).kill()
            for gateway in gateways:
                refused = ask(gateway, max_tokens=1)
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "concurrency_limit_exceeded")
            assert "data: [DONE]" in lines
        for gateway in gateways:
            give_up = time.monotonic() + PATIENCE_S  # a client sees the end before the entry is acknowledged
            while ask(gateway, max_tokens=1).status_code != 200:
                assert time.monotonic() < give_up
    finally:
        for process in (*workers, *gateways):
            process.kill()
