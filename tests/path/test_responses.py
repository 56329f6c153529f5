"""A background response through real processes: whatever is killed, it completes, and reading continues elsewhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from orcastream.demo.prompts import LONG_COUNT
from tests.path.gateway_process import GatewayProcess
from tests.path.site import Site
from tests.redis_server import RedisServer, one_server
from tests.worker.worker_process import MODEL, PACED

pytestmark = one_server("system")

PROMPT, ANSWER = LONG_COUNT


@pytest.fixture
def site(redis_server: RedisServer, tmp_path: Path) -> Iterator[Site]:
    """Processes on an empty server."""
    site = Site(redis_server, tmp_path)
    yield site
    site.stop()


def client_of(gateway: GatewayProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)


def read(stream: Any, until: int | None = None) -> list[Any]:
    """Return a given number of a stream's events, or all."""
    events = []
    for event in stream:
        events.append(event)
        if until is not None and len(events) == until:
            break
    return events


def test_gateway_and_worker_killed_in_mid_stream(site: Site) -> None:
    site.start(workers=2, gateways=2, patch=PACED)
    first, second = site.gateways
    with client_of(first) as client:
        asked: Any = {"model": MODEL, "input": PROMPT, "temperature": 0, "max_output_tokens": 2000}
        stream = client.responses.create(**asked, background=True, stream=True, timeout=120)
        events = read(stream, until=30)
        first.kill()
    response_id = events[0].response.id
    site.writer(response_id).kill()
    with client_of(second) as client:
        assert client.responses.retrieve(response_id).status == "in_progress"
        events += read(client.responses.retrieve(response_id, stream=True, starting_after=events[-1].sequence_number))
        done = client.responses.retrieve(response_id)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == done.output_text
    assert text.strip() == ANSWER
    assert done.status == "completed"
    assert len(site.writers(response_id)) == 2
