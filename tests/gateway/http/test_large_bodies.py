"""Bodies that take long to read delay no other request and free their memory soon: a real gateway process."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fuzz.probe import Probe
from tests.gateway.http.conftest import serving
from tests.gateway.tiny_model import write_tiny_model
from tests.path.gateway_process import GatewayProcess
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

pytestmark = pytest.mark.server

MIB = 1024 * 1024
MODEL = "orca-demo"
USUAL, LONGEST = 32_768, 1_000_000
"""Contexts: what is not refused by its length is tokenized, and the contract allows no longer prompt."""
HELD_S = 0.5
"""All that the process computes while health waits counts as held, that of a tokenizer's threads, too."""
MORE_BYTES = {USUAL: 400 * MIB, LONGEST: 1200 * MIB}
"""A tokenizer takes some 200 bytes for each character; one large text is tokenized at a time."""


def text_body(prompt: str) -> bytes:
    return json.dumps({"model": MODEL, "prompt": prompt, "timeout": 1}).encode()


def chat_body(count: int, content: str) -> bytes:
    messages = [{"role": "user", "content": content}] * count
    return json.dumps({"model": MODEL, "messages": messages, "timeout": 1}).encode()


BODIES = {
    "spaces": ("completions", text_body(" " * (4 * MIB - 100))),
    "one letter": ("completions", text_body("a" * (2 * MIB))),
    "words": ("completions", text_body("the quick brown fox " * (190 * 1024))),
    "messages": ("chat/completions", chat_body(10_000, "hi")),
    "control tokens": ("chat/completions", chat_body(1, "<|im_end|>" * 400_000)),
    "beginnings of control tokens": ("chat/completions", chat_body(1, "<|im_" * 800_000)),
    "empty lists": ("completions", b'{"model":"orca-demo","prompt":[' + b",".join([b"[]"] * 1_000_000) + b"]}"),
}


@pytest.fixture(scope="module")
def gateway(
    request: pytest.FixtureRequest, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    model = write_tiny_model(tmp_path_factory.mktemp("model"), max_model_len=request.param)
    with serving(module_redis, tmp_path_factory.mktemp("gateway"), model=model) as gateway:
        yield gateway


def peak_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def forget_peak(pid: int) -> int:
    """Reset the peak; return the bytes that the process holds now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak_bytes(pid)


def post(gateway: GatewayProcess, path: str, body: bytes) -> int:
    return httpx.post(f"{gateway.url}/v1/{path}", content=body, timeout=PATIENCE_S, trust_env=False).status_code


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(("gateway", "context"), [(USUAL, USUAL), (LONGEST, LONGEST)], indirect=["gateway"])
def test_one_body_delays_no_other(gateway: GatewayProcess, context: int, name: str) -> None:
    probe = Probe(gateway.port, gateway.pid)
    try:
        probe.longest_held_s(PATIENCE_S)
        before = forget_peak(gateway.pid)
        assert post(gateway, *BODIES[name]) in (400, 504)  # refused, or expired: no worker serves here
        assert probe.longest_held_s(PATIENCE_S) < HELD_S
        assert peak_bytes(gateway.pid) - before < MORE_BYTES[context]
    finally:
        probe.close()


@pytest.mark.parametrize("gateway", [USUAL], indirect=True)
def test_many_large_bodies_take_turns(gateway: GatewayProcess) -> None:
    probe = Probe(gateway.port, gateway.pid)
    statuses: list[int] = []
    posts = [
        threading.Thread(target=lambda body=body: statuses.append(post(gateway, *body)))
        for body in [*BODIES.values()] * 2
    ]
    try:
        probe.longest_held_s(PATIENCE_S)
        before = forget_peak(gateway.pid)
        for one in posts:
            one.start()
        for one in posts:
            one.join()
        assert set(statuses) <= {400, 504}
        assert len(statuses) == len(posts)
        assert probe.longest_held_s(PATIENCE_S) < HELD_S
        assert peak_bytes(gateway.pid) - before < MORE_BYTES[USUAL]
    finally:
        probe.close()
