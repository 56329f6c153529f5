"""Prompts and answers appear in no log line, metric or span, even if requests are refused or fail."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from orcastream.demo.prompts import SHOWCASE
from orcastream.engine.batch.executor import Executor
from orcastream.gateway.admission.request_admission import RequestAdmission
from orcastream.worker.admission import Admission as WorkerAdmission
from tests.path.gateway_process import GatewayProcess
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.redis_server import RedisServer, one_server
from tests.redis_waiting import wait_until
from tests.telemetry.otlp_receiver import OtlpReceiver
from tests.worker.producer import Producer
from tests.worker.worker_process import MODEL, WorkerProcess

pytestmark = one_server("embedded")

MARKER = "xyzzymarker"
PROMPT = f"the {MARKER} of a prompt"
QUESTION, ANSWER = next(item for item in SHOWCASE if item[0].startswith("Count from 1 "))
REQUESTS = "orca:{orca-demo}:requests:normal"
DEAD = "orca:{orca-demo}:dead"
BODY = {"model": MODEL, "prompt": PROMPT, "max_tokens": 5, "temperature": 0}


class _Recorder(OtlpReceiver):
    """Keeps everything received, unchanged."""

    def __init__(self) -> None:
        self.raw = b""
        super().__init__()

    def _take(self, path: str, body: bytes) -> int:
        self.raw += body
        return super()._take(path, body)


class Watched:
    """A gateway and a worker with all telemetry enabled."""

    def __init__(self, server: RedisServer, receiver: _Recorder, directory: Path, *, quoting: bool) -> None:
        self.server = server
        self.receiver = receiver
        settings: dict[str, Any] = {"log_level": "debug"}
        self.admin_port = free_port()
        patches = (worker_quotes, gateway_quotes) if quoting else (None, None)
        self.worker = WorkerProcess(
            server.url, directory / "w.log", patch=patches[0], **{**settings, "admin_port": self.admin_port}
        )
        self.gateway = GatewayProcess(server.url, directory / "g.log", patch=patches[1], **settings)


@contextmanager
def _site(redis_binary: str, directory: Path, *, quoting: bool = False) -> Iterator[Watched]:
    server = RedisServer(redis_binary, directory / "redis")
    server.start()
    with _Recorder() as receiver, pytest.MonkeyPatch.context() as environment:
        for name, value in {**receiver.environment(), "OTEL_LOGS_EXPORTER": "otlp"}.items():
            environment.setenv(name, value)
        environment.setenv("ORCASTREAM_METRICS", "true")
        watched = Watched(server, receiver, directory, quoting=quoting)
        try:
            watched.gateway.wait_ready()
            yield watched
        finally:
            watched.gateway.kill()
            watched.worker.kill()
            server.kill()


@pytest.fixture(scope="module")
def watched(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with _site(redis_binary, tmp_path_factory.mktemp("watched")) as site:
        yield site


def _ask(
    watched: Watched, content: bytes | None = None, path: str = "/v1/completions", **changes: Any
) -> httpx.Response:
    body = {"content": content} if content is not None else {"json": {**BODY, **changes}}
    return httpx.post(f"{watched.gateway.url}{path}", timeout=PATIENCE_S, **body)


def _good(watched: Watched) -> None:
    """Send a prompt, get an answer, reread a stream, cancel one."""
    assert _ask(watched).status_code == 200
    chat = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5}
    assert httpx.post(f"{watched.gateway.url}/v1/chat/completions", json=chat, timeout=PATIENCE_S).status_code == 200
    answer = _ask(watched, prompt=QUESTION, max_tokens=400)
    assert answer.json()["choices"][0]["text"].strip() == ANSWER
    streamed = _ask(watched, stream=True, stop=[MARKER])
    request_id = streamed.headers["x-request-id"]
    events = httpx.get(f"{watched.gateway.url}/v1/requests/{request_id}/events", timeout=PATIENCE_S)
    assert events.status_code == 200
    httpx.delete(f"{watched.gateway.url}/v1/requests/{request_id}", timeout=PATIENCE_S)
    _good_agent(watched)
    _good_batch(watched)


def _good_agent(watched: Watched) -> None:
    """Use tools in chats and responses, send a call's result back, and store, follow and delete a response."""
    tool = {"name": MARKER, "description": PROMPT, "parameters": {"type": "object", "properties": {MARKER: {}}}}
    call = {"id": "call_1", "type": "function", "function": {"name": MARKER, "arguments": json.dumps({MARKER: PROMPT})}}
    messages = [
        {"role": "user", "content": PROMPT},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": PROMPT},
    ]
    common = {"model": MODEL, "tool_choice": "required"}
    chat = {**common, "messages": messages, "tools": [{"type": "function", "function": tool}], "max_tokens": 5}
    assert httpx.post(f"{watched.gateway.url}/v1/chat/completions", json=chat, timeout=PATIENCE_S).status_code == 200
    asked = {**common, "input": PROMPT, "instructions": PROMPT, "tools": [{"type": "function", **tool}]}
    for more in ({"stream": True}, {"background": True}):
        body = {"max_output_tokens": 5, **asked, **more}
        answer = httpx.post(f"{watched.gateway.url}/v1/responses", json=body, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
    kept = f"{watched.gateway.url}/v1/responses/{answer.json()['id']}"
    assert httpx.get(kept, params={"stream": "true", "starting_after": "1"}, timeout=PATIENCE_S).status_code == 200
    assert MARKER in httpx.get(f"{kept}/input_items", timeout=PATIENCE_S).text
    assert httpx.delete(kept, timeout=PATIENCE_S).status_code == 200


def _good_batch(watched: Watched) -> None:
    """Run a file with one line that is answered and one that is refused."""
    bodies = [BODY, {**BODY, "max_tokens": PROMPT}]
    lines = [
        json.dumps({"custom_id": f"{MARKER} {number}", "method": "POST", "url": "/v1/completions", "body": body})
        for number, body in enumerate(bodies)
    ]
    files = {"file": (f"{MARKER}.jsonl", "\n".join(lines).encode())}
    url = f"{watched.gateway.url}/v1"
    file_id = httpx.post(f"{url}/files", data={"purpose": "batch"}, files=files, timeout=PATIENCE_S).json()["id"]
    asked = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch_id = httpx.post(f"{url}/batches", json=asked, timeout=PATIENCE_S).json()["id"]
    wait_until(lambda: httpx.get(f"{url}/batches/{batch_id}", timeout=PATIENCE_S).json()["status"] == "completed")


def _refused(watched: Watched) -> None:
    """Send every kind of invalid body that contains the prompt."""
    wrong: list[dict[str, Any]] = [
        {"prompt": {"text": PROMPT}},
        {"prompt": [PROMPT, 5]},
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
    for changes in (
        {"tools": [{"type": PROMPT}]},
        {"tools": [{"type": "function", PROMPT: 1}]},
        {"input": {PROMPT: 1}},
    ):
        body = {"model": MODEL, "input": PROMPT, **changes}
        assert 400 <= httpx.post(f"{watched.gateway.url}/v1/responses", json=body, timeout=PATIENCE_S).status_code < 500
    messages = [{"role": "user", "content": PROMPT, PROMPT: PROMPT}]
    chat = {"model": MODEL, "messages": messages}
    assert httpx.post(f"{watched.gateway.url}/v1/chat/completions", json=chat, timeout=PATIENCE_S).status_code == 400


def _unusable(watched: Watched) -> None:
    """Post invalid entries: each becomes a dead letter."""
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
        give_up = time.monotonic() + PATIENCE_S
        while client.xlen(DEAD) < len(wrong):
            assert time.monotonic() < give_up
            time.sleep(0.05)


def gateway_quotes() -> None:
    """Cause an unforeseen error that quotes the body."""

    def admit(self: RequestAdmission, asked: object, *_: object, **__: object) -> None:
        try:
            raise KeyError(asked)
        except KeyError as error:
            raise RuntimeError(f"cannot admit {asked!r}") from error

    RequestAdmission.admit = admit  # type: ignore[method-assign]


def worker_quotes() -> None:
    """Cause unforeseen errors that quote the request: while it is read, attached and computed."""
    read, check_end, launch = WorkerAdmission._read, WorkerAdmission._check_end, Executor.launch

    def failing_read(self: WorkerAdmission, claimed: Any, now_ms: int) -> Any:
        if claimed.fields[b"id"] == b"read":
            raise RuntimeError(f"cannot read {claimed.fields!r}")
        return read(self, claimed, now_ms)

    def failing_check(self: WorkerAdmission, session: Any, running: Any, outcome: Any) -> None:
        if running.id == "attach":
            raise ExceptionGroup(f"cannot attach {running.request!r}", [ValueError(running.request.payload.stop)])
        check_end(self, session, running, outcome)

    def failing_launch(self: Executor, prepared: Any, pending: Any) -> None:
        if any(request.id.startswith("compute") for request in prepared.plan.requests):
            raise RuntimeError(f"cannot compute {MARKER}")
        launch(self, prepared, pending)

    WorkerAdmission._read = failing_read  # type: ignore[method-assign]
    WorkerAdmission._check_end = failing_check  # type: ignore[method-assign]
    Executor.launch = failing_launch  # type: ignore[method-assign]


def _unforeseen(site: Watched) -> str:
    """Return all telemetry about errors that quote content."""
    assert _ask(site).status_code == 500
    with site.server.client() as client:
        for name in ("read", "attach", "compute"):
            payload = {"prompt": [5], "stop": [MARKER], "max_tokens": 2}
            deadline = str(int(time.time() * 1000) + 60_000)
            client.xadd(REQUESTS, {"id": name, "v": "1", "deadline": deadline, "payload": json.dumps(payload)})
            Producer(site.server.url).read(name)
    for process in (site.gateway, site.worker):
        process.signal(signal.SIGTERM)
        process.wait()
    told = site.gateway.log + site.worker.log
    for raised_in in ("failing_read", "failing_check", "failing_launch", "in admit"):
        assert raised_in in told, "the place where it was raised is logged"
    for kind in ("KeyError", "RuntimeError", "ExceptionGroup", "ValueError"):
        assert kind in told
    return told + site.receiver.raw.decode(errors="replace")


@pytest.mark.parametrize("log_content", [False, True])
def test_messages_of_unforeseen_errors_are_logged_only_on_request(
    redis_binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_content: bool
) -> None:
    monkeypatch.setenv("ORCASTREAM_LOG_CONTENT", str(log_content))
    with _site(redis_binary, tmp_path, quoting=True) as site:
        told = _unforeseen(site)
    assert bool([line for line in told.splitlines() if MARKER in line]) is log_content


def test_prompts_and_answers_never_appear_in_telemetry(watched: Watched) -> None:
    _good(watched)
    _refused(watched)
    _unusable(watched)
    ports = (watched.gateway.port, watched.admin_port)
    told = "".join(httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S).text for port in ports)
    for process in (watched.gateway, watched.worker):
        process.signal(signal.SIGTERM)  # buffered telemetry is sent at the end
        process.wait()
    assert "refused" in watched.gateway.log
    assert "request refused" in watched.worker.log
    assert watched.receiver.spans
    told += watched.gateway.log + watched.worker.log + watched.receiver.raw.decode(errors="replace")
    assert not [line[:500] for line in told.splitlines() if MARKER in line or ANSWER in line]
