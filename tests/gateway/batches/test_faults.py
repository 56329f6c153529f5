"""Batches through killed gateways and workers: real processes, the demo model, every line answered once."""

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from orcastream.schemas.keys import Keys
from tests.cli.jobs.bulk import questions
from tests.gateway.batches.conftest import CHAT, ENDED
from tests.path.site import Site
from tests.redis_server import RedisServer

pytestmark = pytest.mark.server

LINES = 240


@pytest.fixture
def site(own_redis: Callable[..., RedisServer], tmp_path: Path) -> Iterator[Site]:
    site = Site(own_redis(aof="always"), tmp_path)
    yield site
    site.stop()


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=5)


def until_done(url: str, batch_id: str, least: int) -> None:
    """Wait until this number of lines has results."""
    with client_of(url) as client:
        while (counts := client.batches.retrieve(batch_id).request_counts) is None or counts.completed < least:
            time.sleep(0.02)


def test_every_line_once_whatever_is_killed(site: Site) -> None:
    """Kill the gateway that runs the batch, a worker and Redis in turn; the other gateway continues."""
    site.start(workers=2, gateways=2)
    asked = {str(number): pair for number, pair in enumerate(questions(LINES, random.Random(3)))}
    lines = [
        {
            "custom_id": custom_id,
            "method": "POST",
            "url": CHAT,
            "body": {"model": "orca-demo", "messages": [{"role": "user", "content": question}], "temperature": 0},
        }
        for custom_id, (question, _) in asked.items()
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with client_of(site.url) as client:
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    until_done(site.url, batch.id, 20)
    with site.server.client() as redis:
        runner = (redis.get(Keys("orca-demo").job_runner(batch.id)) or b"").decode()
    [dies] = [gateway for gateway in site.gateways if f"-{gateway.pid}-" in runner]
    [stays] = [gateway for gateway in site.gateways if gateway is not dies]
    dies.kill()
    until_done(stays.url, batch.id, 80)
    site.replace_worker(next(iter(site.workers)))
    until_done(stays.url, batch.id, 140)
    site.server.kill()
    site.server.start()
    with client_of(stays.url) as client:
        while (batch := client.batches.retrieve(batch.id)).status not in ENDED:
            time.sleep(0.1)
        results = [json.loads(line) for line in client.files.content(batch.output_file_id or "").content.splitlines()]
    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": LINES, "completed": LINES, "failed": 0}
    answers = {one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"] for one in results}
    assert len(results) == len(answers) == LINES
    assert answers == {custom_id: answer for custom_id, (_, answer) in asked.items()}
