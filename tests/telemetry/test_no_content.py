"""Prompts and answers get into no log line, metric or span, also where requests are refused or fail."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from demo.prompts import SHOWCASE
from tests.path.gateway_process import GatewayProcess
from tests.ports import free_port
from tests.redis_server import RedisServer, one_server
from tests.telemetry.otlp_receiver import OtlpReceiver
from tests.worker.worker_process import MODEL, WorkerProcess

pytestmark = one_server("embedded")

MARKER = "xyzzymarker"
PROMPT = f"the {MARKER} of a prompt"
QUESTION, ANSWER = next(item for item in SHOWCASE if item[0].startswith("Count from 1 "))
REQUESTS = "orca:{orca-demo}:requests:normal"
DEAD = "orca:{orca-demo}:dead"
BODY = {"model": MODEL, "prompt": PROMPT, "max_tokens": 5, "temperature": 0}


class _Recorder(OtlpReceiver):
    """Keeps everything that came, as it came."""

    def __init__(self) -> None:
        self.raw = b""
        super().__init__()

    def _take(self, path: str, body: bytes) -> None:
        self.raw += body
        super()._take(path, body)


class Watched:
    """A gateway and a worker that tell all they can tell."""

    def __init__(self, server: RedisServer, receiver: _Recorder, directory: Path) -> None:
        self.server = server
        self.receiver = receiver
        talkative: dict[str, Any] = {"log_level": "debug"}
        self.admin_port = free_port()
        self.worker = WorkerProcess(server.url, directory / "w.log", admin_port=self.admin_port, **talkative)
        self.gateway = GatewayProcess(server.url, directory / "g.log", **talkative)


@pytest.fixture(scope="module")
def watched(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("watched")
    server = RedisServer(redis_binary, directory / "redis")
    server.start()
    with _Recorder() as receiver, pytest.MonkeyPatch.context() as environment:
        for name, value in receiver.environment().items():
            environment.setenv(name, value)
        environment.setenv("ORCASTREAM_METRICS", "true")
        watched = Watched(server, receiver, directory)
        try:
            watched.gateway.wait_ready()
            yield watched
        finally:
            watched.gateway.kill()
            watched.worker.kill()
            server.kill()


def _ask(
    watched: Watched, content: bytes | None = None, path: str = "/v1/completions", **changes: Any
) -> httpx.Response:
    body = {"content": content} if content is not None else {"json": {**BODY, **changes}}
    return httpx.post(f"{watched.gateway.url}{path}", timeout=60, **body)


def _good(watched: Watched) -> None:
    """A prompt, an answer, a stream that is read again, one that is cancelled."""
    assert _ask(watched).status_code == 200
    chat = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5}
    assert httpx.post(f"{watched.gateway.url}/v1/chat/completions", json=chat, timeout=60).status_code == 200
    answer = _ask(watched, prompt=QUESTION, max_tokens=400)
    assert answer.json()["choices"][0]["text"].strip() == ANSWER
    streamed = _ask(watched, stream=True, stop=[MARKER])
    request_id = streamed.headers["x-request-id"]
    events = httpx.get(f"{watched.gateway.url}/v1/requests/{request_id}/events", timeout=60)
    assert events.status_code == 200
    httpx.delete(f"{watched.gateway.url}/v1/requests/{request_id}")


def _refused(watched: Watched) -> None:
    """Every way in which a body can be wrong with the prompt in it."""
    wrong: list[dict[str, Any]] = [
        {"prompt": {"text": PROMPT}},
        {"prompt": [PROMPT, PROMPT]},
        {"stop": [PROMPT * 100]},
        {"max_tokens": PROMPT},
        {"priority": PROMPT},
        {PROMPT: 1},
        {"stream_options": {PROMPT: PROMPT}},
        {"model": PROMPT},
        {"request_id": PROMPT},
        {"on_disconnect": PROMPT},
        {"cache_salt": PROMPT * 100},
        {"prompt": PROMPT * 1000},
    ]
    for changes in wrong:
        assert 400 <= _ask(watched, **changes).status_code < 500, changes
    for content in (
        f'{{"prompt": "{PROMPT}'.encode(),
        f'{{"model":"{MODEL}","prompt":"{PROMPT}\\ud800"}}'.encode(),
        f'"{PROMPT}"'.encode(),
        PROMPT.encode() + b"\xff",
    ):
        assert _ask(watched, content).status_code == 400
    assert _ask(watched, path=f"/v1/completions?prompt={MARKER}").status_code == 400
    messages = [{"role": "user", "content": PROMPT, PROMPT: PROMPT}]
    chat = {"model": MODEL, "messages": messages}
    assert httpx.post(f"{watched.gateway.url}/v1/chat/completions", json=chat).status_code == 400


def _unusable(watched: Watched) -> None:
    """Entries that a producer got wrong: each becomes a dead letter."""
    good = {"v": "1", "deadline": str(int(time.time() * 1000) + 60_000)}
    wrong: list[dict[str, str]] = [
        {"payload": f'{{"prompt":"{PROMPT}"}}'},
        {"payload": f'{{"prompt":[1],"stop":"{PROMPT}"}}'},
        {"payload": f'{{"prompt":[1],"{PROMPT}":1}}'},
        {"payload": PROMPT},
        {"payload": '{"prompt":[1]}', PROMPT: PROMPT},
        {"payload": '{"prompt":[1]}', "class": PROMPT},
        {"payload": '{"prompt":[1]}', "deadline": PROMPT},
        {"payload": '{"prompt":[1]}', "v": PROMPT},
        {"payload": '{"prompt":[1]}', "id": PROMPT},
    ]
    with watched.server.client() as client:
        for number, fields in enumerate(wrong):
            client.xadd(REQUESTS, {"id": f"bad{number}", **good, **fields})
        give_up = time.monotonic() + 60
        while client.xlen(DEAD) < len(wrong):
            assert time.monotonic() < give_up
            time.sleep(0.05)


def test_prompts_and_answers_are_told_to_nobody(watched: Watched) -> None:
    _good(watched)
    _refused(watched)
    _unusable(watched)
    ports = (watched.gateway.port, watched.admin_port)
    told = "".join(httpx.get(f"http://127.0.0.1:{port}/metrics").text for port in ports)
    for process in (watched.gateway, watched.worker):
        process.signal(signal.SIGTERM)  # what telemetry still holds is sent at the end
        process.wait()
    assert "refused" in watched.gateway.log
    assert "request refused" in watched.worker.log
    assert watched.receiver.spans
    told += watched.gateway.log + watched.worker.log + watched.receiver.raw.decode(errors="replace")
    assert not [line[:500] for line in told.splitlines() if MARKER in line or ANSWER in line]
