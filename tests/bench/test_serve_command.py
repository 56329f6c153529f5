"""`bench serve` with gateways that answer late, badly, or not at all."""

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from typing import Any

from orcastream.bench.serve.command import ServeBench, parse
from tests.bench.scripted_gateway import Answer, Says, scripted_gateway
from tests.service_process import ROOT

MODELS = Answer([b'{"data": [{"id": "m"}]}'])
"""What is said to those who ask whether it is ready, and what it serves."""
SHORT = ("--workload", "equal_size", "--length-scale", "0.01", "--warmup", "0")


def whole(body: Mapping[str, Any], **usage: Any) -> Answer:
    """Return a response with all tokens at once."""
    text = {"choices": [{"text": "w", "finish_reason": "length"}]}
    told = {"usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"], **usage}}
    return Answer([f"data: {json.dumps(event)}\n\n".encode() for event in (text, told)] + [b"data: [DONE]\n\n"])


async def run(says: Says, *flags: str) -> tuple[ServeBench, dict[str, Any]]:
    """Run the benchmark with that gateway, and return its figures."""
    async with scripted_gateway(says) as url:
        bench = ServeBench(parse(["--url", url, *SHORT, *flags]))
        await bench.run()
    return bench, bench.result("").to_json()


async def test_rates_cover_the_whole_time_even_if_the_last_requests_fail() -> None:
    asked = 0

    def says(_: dict[str, str], body: dict[str, Any]) -> Answer:
        nonlocal asked
        asked += bool(body)
        if not body:
            return MODELS
        return whole(body) if asked == 1 else Answer([], hangs=True)

    _, figures = await run(says, "--requests", "3", "--timeout", "0.4")
    assert figures["errors"] == {"no end in time": 2}
    assert figures["duration_s"] >= 0.4
    assert figures["requests_per_s"] == 1 / figures["duration_s"]


async def test_an_interrupt_ends_the_wait_for_a_gateway_and_the_warm_up() -> None:
    asked = asyncio.Event()

    def not_ready(*_: object) -> Answer:
        asked.set()
        return Answer([], status=503)

    def warming_up(_: object, body: dict[str, Any]) -> Answer:
        if not body:
            return MODELS
        asked.set()
        return Answer([], hangs=True)

    for says in (not_ready, warming_up):
        asked.clear()
        async with scripted_gateway(says) as url:
            command = (sys.executable, "-m", "orcastream.cli.main", "bench", "serve", "--url", url)
            process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
            async with asyncio.timeout(30):
                await asked.wait()
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 130
