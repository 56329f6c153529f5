"""Function tools of responses through real processes: a required call, and the answer after its result."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from tests.path.site import Site
from tests.path.test_responses import client_of, read
from tests.path.test_tools import ORDER
from tests.redis_server import RedisServer, one_server
from tests.worker.worker_process import MODEL, PACED

pytestmark = one_server("system")

TOOLS: Any = [{"type": "function", "name": "order", "parameters": ORDER, "strict": True}]
MANY: Any = {
    "type": "object",
    "properties": {"notes": {"type": "array", "items": {"enum": ["soup", "pie"]}, "minItems": 200, "maxItems": 200}},
    "required": ["notes"],
}
ASKED: dict[str, Any] = {
    "model": MODEL,
    "input": "Count from 1 to 9",
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "temperature": 0,
}


@pytest.fixture
def site(redis_server: RedisServer, tmp_path: Path) -> Iterator[Site]:
    site = Site(redis_server, tmp_path)
    yield site
    site.stop()


def call_of(client: openai.OpenAI, response_id: str, schema: dict[str, Any]) -> Any:
    (call,) = client.responses.retrieve(response_id).output
    assert call.type == "function_call"
    jsonschema.validate(json.loads(call.arguments), schema)
    return call


def test_a_call_and_the_answer_after_its_result(site: Site) -> None:
    site.start(workers=1, gateways=2)
    first, second = site.gateways
    with client_of(first) as client, client_of(second) as other:
        called = client.responses.create(**ASKED, timeout=120)
        call = call_of(other, called.id, ORDER)
        assert [call] == called.output
        results: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "It comes."}]
        more: dict[str, Any] = {"model": MODEL, "tools": TOOLS, "tool_choice": "none", "temperature": 0}
        by_id = other.responses.create(**more, input=results, previous_response_id=called.id, max_output_tokens=8)
        items = [{"role": "user", "content": ASKED["input"]}, *called.output, *results]
        by_hand = client.responses.create(**more, input=items, max_output_tokens=8)
        assert by_id.usage is not None
        assert by_hand.usage is not None
        assert by_id.output_text == by_hand.output_text
        assert by_id.usage.input_tokens == by_hand.usage.input_tokens


def test_worker_and_gateway_killed_in_mid_call(site: Site) -> None:
    """Some of its arguments have arrived by then; the second gateway sends the rest, with the numbers that follow."""
    site.start(workers=2, gateways=2, patch=PACED)
    first, second = site.gateways
    asked = {**ASKED, "tools": [{"type": "function", "name": "note", "parameters": MANY}]}
    with client_of(first) as client:
        events = read(client.responses.create(**asked, background=True, stream=True, timeout=120), until=12)
        first.kill()
    response_id = events[0].response.id
    site.writer(response_id).kill()
    with client_of(second) as client:
        number = events[-1].sequence_number
        events += read(client.responses.retrieve(response_id, stream=True, starting_after=number))
        call = call_of(client, response_id, MANY)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [kind for kind, _ in groupby(event.type.removeprefix("response.") for event in events)] == [
        *("created", "in_progress", "output_item.added"),
        *("function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(pieces) > 200
    assert "".join(pieces) == call.arguments
    assert events[-1].response.output == [call]
    assert len(site.writers(response_id)) == 2
