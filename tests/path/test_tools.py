"""Tool calls of the demo model, which was not trained on tools, through real processes."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.chaos.patches import pace
from tests.path.site import Site
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server

pytestmark = one_server("system")

ORDER = {
    "type": "object",
    "$defs": {"size": {"enum": ["small", "large"]}},
    "properties": {
        "dish": {"enum": ["soup", 'a "pie"']},
        "size": {"$ref": "#/$defs/size"},
        "number": {"type": "integer", "minimum": 1, "maximum": 99},
        "notes": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 3, "maxItems": 4},
    },
    "required": ["dish", "size", "number", "notes"],
}
SCHEMAS = {"order": ORDER, "leave": {"type": "object", "properties": {"at": {"type": "boolean"}}, "required": ["at"]}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": each}} for name, each in SCHEMAS.items()]
BODY = {"model": "orca-demo", "messages": [{"role": "user", "content": "Count from 1 to 9"}], "tools": TOOLS}


@pytest.fixture
def site(redis_server: RedisServer, tmp_path: Path) -> Iterator[Site]:
    site = Site(redis_server, tmp_path)
    yield site
    site.stop()


def ask(site: Site, **more: Any) -> list[dict[str, Any]]:
    """Return the choices of a whole answer."""
    with httpx.Client(timeout=PATIENCE_S) as http:
        response = http.post(f"{site.url}/v1/chat/completions", json={**BODY, **more})
    assert response.status_code == 200, response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    return choices


def streamed(site: Site, kill_at: int | None = None, **more: Any) -> tuple[list[dict[str, Any]], str | None, int]:
    """Return the calls of a stream's only choice, its finish reason, and how many workers wrote it.

    `kill_at`: the position of an output token at which the worker is killed.
    """
    calls: list[dict[str, Any]] = []
    reason, workers, newest = None, set(), ""
    body = {**BODY, **more, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    url = f"{site.url}/v1/chat/completions"
    with httpx.Client(timeout=PATIENCE_S) as http, http.stream("POST", url, json=body) as lines:
        for line in lines.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                newest = chunk.get("served_by", {}).get("worker", newest)
                workers.add(newest)
                if kill_at is not None and chunk["usage"] and chunk["usage"]["completion_tokens"] >= kill_at:
                    site.workers[newest].kill()
                    kill_at = None
                for choice in chunk["choices"]:
                    for call in choice["delta"].get("tool_calls", []):
                        take_call(calls, call)
                    reason = choice["finish_reason"] or reason
    return calls, reason, len(workers)


def take_call(calls: list[dict[str, Any]], call: dict[str, Any]) -> None:
    """Take a chunk of a call: its beginning, or more of its arguments."""
    if call["index"] == len(calls):
        calls.append(call)
    else:
        calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]


def assert_valid(calls: list[dict[str, Any]]) -> None:
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, SCHEMAS[call["function"]["name"]])


def test_required_calls_are_valid_whatever_the_model_would_generate(site: Site) -> None:
    site.start(workers=1)
    for temperature in (0, 1, 2):
        for choice in ask(site, tool_choice="required", parallel_tool_calls=False, n=4, temperature=temperature):
            message = choice["message"]
            assert (message["content"], choice["finish_reason"]) == (None, "tool_calls")
            assert len(message["tool_calls"]) == 1
            assert_valid(message["tool_calls"])
    leave = {"type": "function", "function": {"name": "leave"}}
    for choice in ask(site, tool_choice=leave, n=4, temperature=2, max_tokens=400):
        calls = choice["message"].get("tool_calls", [])
        assert calls
        assert {call["function"]["name"] for call in calls} == {"leave"}
        assert_valid(calls)
    (none,) = ask(site, tool_choice="none", temperature=0)
    assert (none["message"]["content"], none["finish_reason"]) == ("1, 2, 3, 4, 5, 6, 7, 8, 9", "stop")


def test_a_worker_killed_in_mid_call(site: Site) -> None:
    site.start(workers=2, patch=partial(pace, 0.05))
    more: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
    undisturbed, reason, _ = streamed(site, **more)
    assert (len(undisturbed), reason) == (1, "tool_calls")
    assert_valid(undisturbed)
    more |= {"logprobs": True}  # whose chunks arrive with each token
    calls, reason, num_workers = streamed(site, kill_at=20, **more)
    assert ([call["function"] for call in calls], reason) == ([call["function"] for call in undisturbed], "tool_calls")
    assert num_workers == 2
