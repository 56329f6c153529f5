"""What a gateway process reports to a collector and Prometheus, and that it needs neither."""

import asyncio
import json
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from orcastream.gateway import metrics
from orcastream.gateway.errors import NOT_ADMITTED
from orcastream.gateway.metrics import _BROKEN
from orcastream.gateway.metrics import REFUSALS as REFUSAL_CODES
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import CLASSES
from orcastream.telemetry.names import (
    BROKEN_REPLIES,
    DEAD_LETTERS,
    GATEWAY,
    GATEWAY_ABANDONED,
    METRICS,
    REDIS_AOF,
    REDIS_LAG,
    REDIS_MEMORY_LIMIT,
    REFUSALS,
    REQUESTS_ENDED,
    Attribute,
    Kind,
    Metric,
    SpanEvent,
)
from orcastream.telemetry.prometheus import prometheus_name, prometheus_series
from tests.broker.scripted import make_request
from tests.gateway.conftest import MODEL, TEXT, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.sse_client import read
from tests.gateway.tiny_model import write_other_model
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.redis_server import RedisServer
from tests.service_process import ServiceProcess
from tests.telemetry.otlp_receiver import OtlpReceiver, ReceivedPoint, ReceivedSpan

StartGateway = Callable[[Mapping[str, str]], AbstractAsyncContextManager[httpx.AsyncClient]]

CLIENT_SPAN = "00f067aa0ba902b7"
CLIENT_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PROCESS_TRACE, PROCESS_SPAN = "c" * 32, "d" * 16
OURS = {metric.name: metric for metric in METRICS if GATEWAY in metric.services}
OF_OTHER_SERVERS = {metric.name for metric in (REDIS_AOF, REDIS_LAG, REDIS_MEMORY_LIMIT)}
"""What a server without a limit, a file and replicas does not tell."""


@pytest.fixture
def start(stage: Stage, model_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartGateway:
    """Start gateway processes with these variables; each is told to stop at the end of its block, and must."""
    monkeypatch.setenv("ORCASTREAM_REQUIRE_WORKER", "false")
    monkeypatch.setenv("ORCASTREAM_METRICS", "true")

    @asynccontextmanager
    async def run(environment: Mapping[str, str]) -> AsyncIterator[httpx.AsyncClient]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        settings: dict[str, Any] = {
            "redis_url": stage.url,
            "model": model_folder,
            "served_model_name": MODEL,
            "shutdown_grace_s": 0,
        }
        port = free_port()
        gateway = ServiceProcess("gateway", tmp_path / "gateway.log", port=port, **settings)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
                await eventually(lambda: _lives(gateway, http))
                yield http
            gateway.signal(signal.SIGTERM)
            assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
            assert "Traceback" not in gateway.log
            assert len([line for line in gateway.log.splitlines() if "export" in line]) <= 2, "one for each exporter"
        finally:
            gateway.kill()

    return run


async def _lives(gateway: ServiceProcess, http: httpx.AsyncClient) -> bool:
    assert gateway.running, gateway.log
    try:
        return (await http.get("/health/live")).status_code == 200
    except httpx.ConnectError:
        return False


def _server(receiver: OtlpReceiver, name: str) -> list[ReceivedSpan]:
    return [span for span in receiver.spans if span.name == name and span.kind == "SERVER"]


async def test_deprecated_names_create_no_client_chosen_series(start: StartGateway) -> None:
    async with start({"OTEL_SEMCONV_STABILITY_OPT_IN": "http/dup"}) as http:
        for number in range(3):
            await http.get("/v1/models", headers={"Host": f"made-up-{number}.example"})
        page = (await http.get("/metrics")).text
    assert "made-up" not in page
    told = [line for line in page.splitlines() if line.startswith("http_server_duration_milliseconds_count")]
    assert [line.partition(" ")[2] for line in told] == ["3.0"]


async def test_traces_and_metrics_of_a_gateway(stage: Stage, start: StartGateway) -> None:
    with OtlpReceiver() as receiver:
        async with start(receiver.environment(OTEL_METRIC_EXPORT_INTERVAL="60000")) as http:
            await _cancelled_while_it_waits(http)
            await _left_while_it_waits(http)
            process = f"00-{PROCESS_TRACE}-{PROCESS_SPAN}-01"
            tokens = stage.tokenizer.encode(TEXT)
            answer = Answer([tokens], cached_tokens=1, traceparent=process)
            stays = Answer([tokens], gate=Gate(1))
            worker = await stage.worker(lambda request: stays if request.id == "cmpl-stays" else answer)
            request_id = await _streamed(http)
            async with http.stream("GET", f"/v1/requests/{request_id}/events") as response:
                assert [event async for event in read(response)][-1].done
            refused = await http.post("/v1/chat/completions", json={"model": "another", "messages": []})
            assert refused.status_code == 400
            for untold in ("/health", "/health/live", "/metrics"):
                await http.get(untold)
            page = await eventually(lambda: _page_with_the_queue(http))
            answered = worker.requests[-1].traceparent
            broken_off = asyncio.create_task(_told_at_the_end(http.base_url, "stays"))
            await stays.gate.reached(1)
        assert await broken_off == "gateway_stopping"
        server = _server(receiver, "POST /v1/chat/completions")
        sends = receiver.named("send")
        _check_the_trace(server, sends, len(tokens))
        assert answered in [f"00-{CLIENT_TRACE}-{send.span_id}-01" for send in sends if send.trace_id == CLIENT_TRACE]
        (resumed,) = _server(receiver, "GET /v1/requests/{request_id}/events")
        assert resumed.links == [(PROCESS_TRACE, PROCESS_SPAN)]
        assert resumed.attributes[Attribute.RESPONSE_ID] == request_id
        assert resumed.attributes[Attribute.REQUEST_CLASS] == "normal"
        routes = {span.attributes[Attribute.HTTP_ROUTE] for span in receiver.spans if span.kind == "SERVER"}
        assert not [route for route in routes if "health" in route or "metrics" in route]
        assert {span.kind for span in receiver.spans} == {"SERVER", "PRODUCER"}, "no span per event of a stream"
        cancelled, left, stopped = _server(receiver, "POST /v1/completions")
        assert (cancelled.attributes[Attribute.ERROR_TYPE], cancelled.status) == ("cancelled", "UNSET")
        assert [event.name for event in left.events] == [SpanEvent.CLIENT_LEFT]
        assert (stopped.attributes[Attribute.ERROR_TYPE], stopped.status) == ("gateway_stopping", "UNSET"), (
            "another one continues"
        )
        _check_the_metrics(receiver)
        _check_the_page(page)


async def _cancelled_while_it_waits(http: httpx.AsyncClient) -> None:
    """Cancel a waiting request, which this gateway ends itself."""
    body = {"model": MODEL, "prompt": "x", "stream": True, "request_id": "waits"}
    async with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        assert (await http.delete("/v1/requests/cmpl-waits")).json()["cancelled"]
        events = [event async for event in read(response)]
    assert events[-1].error["code"] == "cancelled"


async def _left_while_it_waits(http: httpx.AsyncClient) -> None:
    """Let a client leave before its first token."""
    body = {"model": MODEL, "prompt": "x", "stream": True, "on_disconnect": "continue"}
    async with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200


async def _told_at_the_end(url: httpx.URL, request_id: str) -> str:
    """Return what a client receives that is still connected when the gateway stops."""
    body = {"model": MODEL, "prompt": "x", "stream": True, "request_id": request_id}
    async with (
        httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http,
        http.stream("POST", "/v1/completions", json=body) as response,
    ):
        return [event async for event in read(response)][-1].error["code"]


async def _streamed(http: httpx.AsyncClient) -> str:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 50}
    headers = {"traceparent": f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01", "tracestate": "a=b"}
    async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        assert [event async for event in read(response)][-1].done
        return response.headers["x-request-id"]


async def _page_with_the_queue(http: httpx.AsyncClient) -> str:
    """Return what Prometheus sees once the gateway has read queue and Redis, which it does if metrics are collected."""
    page = (await http.get("/metrics")).text
    looked_at = ("orcastream_queue_length", "orcastream_redis_memory_used", "orcastream_batches_idle")
    return page if all(f"\n{name}" in page for name in looked_at) else ""


def _check_the_trace(server: list[ReceivedSpan], sends: list[ReceivedSpan], num_tokens: int) -> None:
    (first,) = (span for span in server if span.trace_id == CLIENT_TRACE)
    (refused,) = (span for span in server if span.trace_id != CLIENT_TRACE)
    assert first.parent_id == CLIENT_SPAN
    told = {
        Attribute.HTTP_ROUTE: "/v1/chat/completions",
        Attribute.HTTP_STATUS: 200,
        Attribute.OPERATION: "chat",
        Attribute.PROVIDER: "orcastream",
        Attribute.MODEL: MODEL,
        Attribute.MAX_TOKENS: 50,
        Attribute.CHOICES: 1,
        Attribute.FINISH_REASONS: ["stop"],
        Attribute.OUTPUT_TOKENS: num_tokens,
        Attribute.CACHED_TOKENS: 1,
        Attribute.REQUEST_CLASS: "normal",
        Attribute.TENANT: "default",
    }
    assert {name: first.attributes.get(name) for name in told} == told
    assert first.resource["service.name"] == "orcastream-gateway"
    assert first.resource["service.instance.id"].startswith("gateway-")
    (send,) = (span for span in sends if span.trace_id == CLIENT_TRACE)
    assert (send.kind, send.parent_id) == ("PRODUCER", first.span_id)
    assert send.name == "send orca:{model}:requests:{class}"
    assert send.attributes[Attribute.MESSAGING_SYSTEM] == "redis"
    assert send.attributes[Attribute.MESSAGE_ID]
    assert send.end_ns <= first.end_ns
    assert refused.attributes[Attribute.ERROR_TYPE] == "invalid_request"
    assert refused.status == "UNSET", "the client's fault is not the server's"


def _check_the_metrics(receiver: OtlpReceiver) -> None:
    """Check for exactly the metrics that names.py lists for gateways: names, units, buckets, attributes."""
    assert {point.name for point in receiver.points} == set(OURS) - OF_OTHER_SERVERS
    for point in receiver.points:
        metric = OURS[point.name]
        assert point.unit == metric.unit, point
        assert set(point.attributes) <= {str(attribute) for attribute in metric.attributes}, point
        if metric.kind is Kind.HISTOGRAM:
            assert point.bounds == metric.buckets, point
    refusals = {point.attributes[Attribute.ERROR_TYPE]: point.value for point in _of(receiver, REFUSALS)}
    assert refusals == dict.fromkeys(REFUSAL_CODES, 0) | {"invalid_request": 1}
    ended = [(point.attributes[Attribute.OUTCOME], point.value) for point in _of(receiver, REQUESTS_ENDED)]
    assert {outcome for outcome, _ in ended} == set(ErrorCode), "all begin with 0"
    assert [outcome for outcome, count in ended for _ in range(int(count))] == ["cancelled"]
    (broken,) = (point for point in _of(receiver, BROKEN_REPLIES) if point.value)
    assert (broken.attributes[Attribute.ERROR_TYPE], broken.value) == ("gateway_stopping", 1)
    assert len(_of(receiver, BROKEN_REPLIES)) == len(CLASSES) * len(_BROKEN), "others begin with 0"
    abandoned = {point.attributes[Attribute.REQUEST_CLASS]: point.value for point in _of(receiver, GATEWAY_ABANDONED)}
    assert abandoned == {**dict.fromkeys(CLASSES, 0), "normal": 1}


def _of(receiver: OtlpReceiver, metric: Metric) -> list[ReceivedPoint]:
    return [point for point in receiver.points if point.name == metric.name]


def _check_the_page(page: str) -> None:
    shown = {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}
    allowed = {name for metric in OURS.values() for name in prometheus_series(metric)}
    assert shown - {"target_info"} <= allowed
    counted = [metric for name, metric in OURS.items() if name not in OF_OTHER_SERVERS]
    assert shown >= {prometheus_name(metric) for metric in counted if metric.kind in (Kind.GAUGE, Kind.TOTAL)}


def test_every_refusal_code_starts_at_zero() -> None:
    """Otherwise the first refusal is invisible: the first value of a series is not an increase."""
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(metrics.__file__).parent.rglob("*.py"))
    codes = set(re.findall(r'\bcode(?:: str)? ?= ?"(\w+)"', sources))
    codes |= set(re.findall(r'unavailable\([^()]*(?:\([^()]*\)[^()]*)*, "(\w+)"\)', sources))
    codes |= set(re.findall(r'invalid\(.*, "(\w+)"\)', sources))
    codes |= {code for code, _ in NOT_ADMITTED.values()}
    assert codes >= {"unavailable", "no_worker", "not_allowed", "context_length_exceeded", "queue_full"}
    before_any_request = {"invalid_http", "too_many_connections", "connection_full", "headers_too_large"}
    before_any_request |= {"unknown_expectation"}
    of_files = {"file_lost", "file_not_found", "file_unreadable", "files_full"}
    of_batches = {"batch_ended", "batch_not_found", "batch_unreadable", "batches_full"}
    of_replies = {"expired", "reply_conflict", "request_not_found", "invalid_prompt"}
    assert codes - set(REFUSAL_CODES) == of_replies | before_any_request | of_files | of_batches


async def test_refusals_of_every_served_model_start_at_zero(
    start: StartGateway, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write_other_model(tmp_path_factory.mktemp("other"))
    async with start({"ORCASTREAM_MORE_MODELS": json.dumps([f"other={folder}"])}) as http:
        page = (await http.get("/metrics")).text
    name = prometheus_name(REFUSALS)
    samples = [one for family in text_string_to_metric_families(page) for one in family.samples if one.name == name]
    refusals = {(one.labels["gen_ai_request_model"], one.labels["error_type"]): one.value for one in samples}
    assert refusals == {(model, code): 0 for model in (MODEL, "other") for code in REFUSAL_CODES}


async def test_a_client_whose_second_prompt_is_refused_has_not_left(start: StartGateway) -> None:
    name = prometheus_series(GATEWAY_ABANDONED)[-1]
    async with start({"ORCASTREAM_MAX_QUEUE_DEPTH": "1"}) as http:
        refused = await http.post("/v1/completions", json={"model": MODEL, "prompt": ["x", "y"]})
        assert refused.json()["error"]["code"] == "queue_full"
        page = (await http.get("/metrics")).text
    assert sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"{name}{{")) == 0


async def test_a_dead_letter_of_the_sweep_is_counted(
    stage: Stage, start: StartGateway, redis_server: RedisServer
) -> None:
    """The reply log cannot be written, because another program uses its key."""
    request = make_request("late", deadline_ms=int(time.time() * 1000) - 60_000)
    counted = f'\n{prometheus_name(DEAD_LETTERS)}{{gen_ai_request_model="{MODEL}"}}'
    async with start({"ORCASTREAM_SWEEP_S": "0.05"}) as http:
        assert f"{counted} 0.0\n" in (await http.get("/metrics")).text
        with redis_server.client() as redis:
            redis.set(stage.keys.reply(request.id), "junk")
            redis.xadd(stage.keys.requests("normal"), request.fields())

        async def is_counted() -> bool:
            return f"{counted} 1.0\n" in (await http.get("/metrics")).text

        await eventually(is_counted)


async def test_an_absent_or_silent_collector_delays_nothing(stage: Stage, start: StartGateway) -> None:
    """Any wait would last minutes: see the time limit of an export."""
    gate = Gate(0)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    with socket.create_server(("127.0.0.1", 0)) as mute:
        environment = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{mute.getsockname()[1]}/v1/traces",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://127.0.0.1:{free_port()}/v1/metrics",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
            "OTEL_BSP_SCHEDULE_DELAY": "10",
            "OTEL_METRIC_EXPORT_INTERVAL": "50",
        }
        async with start(environment) as http:
            asking = asyncio.create_task(http.post("/v1/completions", json={"model": MODEL, "prompt": "x"}))
            refused = await http.post("/v1/completions", json={"model": "another", "prompt": "x"})
            assert refused.status_code == 404
            connection, _ = await asyncio.to_thread(mute.accept)
            with connection:
                await gate.open()
                answer = await asking
                assert answer.json()["choices"][0]["text"] == TEXT


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER: got 'zipkin', allowed: otlp, console, none"),
        (
            {"TRACES_EXPORTER": "console", "PROPAGATORS": "tracecontext, pigeon"},
            "OTEL_PROPAGATORS: got 'pigeon', allowed: baggage, none, tracecontext; others must be installed",
        ),
    ],
    ids=["exporter", "propagator"],
)
async def test_unusable_settings_end_the_process_at_once(
    stage: Stage,
    model_folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    complaint: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"OTEL_{name}", value)
    gateway = ServiceProcess("gateway", tmp_path / "gateway.log", redis_url=stage.url, model=model_folder, port=0)
    assert await asyncio.to_thread(gateway.wait) == 2
    assert gateway.log == f"orcastream gateway: {complaint}\n"


async def test_a_missing_propagator_matters_only_if_traces_are_enabled(start: StartGateway) -> None:
    async with start({"OTEL_PROPAGATORS": "pigeon", "OTEL_METRICS_EXPORTER": "none"}) as http:
        assert (await http.get("/health/live")).status_code == 200
