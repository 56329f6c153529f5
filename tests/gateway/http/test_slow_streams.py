"""Clients of a real gateway process that read nothing of streams with log probabilities, and then everything."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orcastream import demo
from orcastream.schemas.codec import Form
from orcastream.schemas.events import Ending, Event, Output, Run, Started, Terminal, Usage, encode_event
from orcastream.schemas.keys import DEFAULT_TENANT, Keys
from orcastream.schemas.limits import MAX_CHOICES, MAX_LOGPROBS
from orcastream.schemas.stopping import FinishReason
from orcastream.text.tokenizer import Tokenizer
from tests.gateway.http.conftest import serving
from tests.path.gateway_process import GatewayProcess
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

pytestmark = pytest.mark.server

KEYS = Keys("orca-demo")
NUM_SLOW = 6
NUM_TOKENS = 250
"""Per choice: 12 MB in a gateway's memory for all, and 9 MB as events, of which the kernel holds up to 4."""
LETTERS = "abcdefghij"
ALLOWED_BYTES = 40 << 20
"""More than pages of all logs take while they are read; everything takes twice as much."""


@pytest.fixture
def gateway(module_redis: RedisServer, tmp_path: Path) -> Iterator[GatewayProcess]:
    with serving(module_redis, tmp_path) as process:
        yield process


def answer() -> Iterator[Event]:
    """Yield the events of a reply of MAX_CHOICES choices with the most log probabilities, and different texts."""
    tokenizer = Tokenizer.load(str(demo.MODEL_DIR))
    letters = [tokenizer.encode(letter)[0] for letter in LETTERS]
    likeliest = [[token, -0.5 * token] for token in range(MAX_LOGPROBS)]
    yield Started("w1", KEYS.model, DEFAULT_TENANT, "normal", "normal 1-0", 1, 1, n=MAX_CHOICES)
    for position in range(NUM_TOKENS):
        tokens = [letters[(choice + position) % len(letters)] for choice in range(MAX_CHOICES)]
        yield Output(tuple([Run(at, position, (one,), ([-0.5, likeliest],)) for at, one in enumerate(tokens)]))
    endings = (Ending(FinishReason.LENGTH, NUM_TOKENS),) * MAX_CHOICES
    yield Terminal(endings, Usage(1, MAX_CHOICES * NUM_TOKENS))


def connect(gateway: GatewayProcess, request_id: str) -> socket.socket:
    """Return a connection on which the stream of a reply begins; its client's own buffer is small."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE_S)
    connection.connect(("127.0.0.1", gateway.port))
    head = f"GET /v1/requests/{request_id}/events HTTP/1.0\r\nHost: localhost\r\n\r\n"
    connection.sendall(head.encode())
    assert connection.recv(1) == b"H"
    return connection


def texts(connection: socket.socket) -> list[str]:
    """Read the rest of a stream; return the text of each choice."""
    parts = []
    while part := connection.recv(1 << 20):
        parts.append(part)
    found = [""] * MAX_CHOICES
    lines = b"".join(parts).splitlines()
    assert lines[-2] == b"data: [DONE]"
    for line in lines[:-2]:
        if line.startswith(b"data: "):
            for choice in json.loads(line[6:])["choices"]:
                found[choice["index"]] += choice["text"]
    return found


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) * 1024


def test_clients_that_read_nothing_take_little_memory_and_get_everything_later(
    module_redis: RedisServer, gateway: GatewayProcess
) -> None:
    slow, fast = [f"cmpl-slow-{number}" for number in range(NUM_SLOW)], "cmpl-fast"
    events = [encode_event(event, Form.MSGPACK) for event in answer()]
    with module_redis.client() as redis, ExitStack() as stack:

        def write(request_id: str, *indices: int) -> None:
            for index in indices:
                redis.execute_command("XADD", KEYS.reply(request_id), f"1-{index}", *events[index])

        for request_id in (*slow, fast):
            write(request_id, 0)
        waiting = [stack.enter_context(connect(gateway, request_id)) for request_id in slow]
        reading = stack.enter_context(connect(gateway, fast))
        before_bytes = resident_bytes(gateway.pid)
        for request_id in (*slow, fast):
            write(request_id, *range(1, len(events)))
        expected = [
            "".join(LETTERS[(choice + at) % len(LETTERS)] for at in range(NUM_TOKENS)) for choice in range(MAX_CHOICES)
        ]
        assert texts(reading) == expected
        assert resident_bytes(gateway.pid) - before_bytes < ALLOWED_BYTES
        for connection in waiting:
            assert texts(connection) == expected
