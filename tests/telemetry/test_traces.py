"""One trace covers a request across processes: parents, links, kinds and attributes as exported."""

import secrets
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import pytest

from orcastream.broker.fold import Fold
from orcastream.demo.prompts import LONG_COUNT
from orcastream.schemas.codec import Form
from orcastream.schemas.events import Output, Started, encode_event
from orcastream.telemetry.names import Attribute, Outcome, Span, SpanEvent
from tests.path.stream import Stream
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.telemetry.observed_site import BUDGET, ObservedSite, span_ids
from tests.telemetry.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.worker.worker_process import MODEL

pytestmark = one_server("embedded")

TEMPLATE = "orca:{model}:requests:{class}"
CLIENT_TRACE, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"}
LONG = {"max_tokens": 400, "ignore_eos": True}
PROMPT_TOKENS = list(range(20, 20 + 2 * BUDGET + 4))
PHASES = [Span.QUEUE, Span.WAIT, Span.PREFILL, Span.DECODE, Span.PUBLISH]


@pytest.fixture(scope="module")
def site(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedSite]:
    """Processes that report to a collector in this process."""
    directory = tmp_path_factory.mktemp("observed")
    server = RedisServer(redis_binary, directory / "redis")
    server.start()
    with OtlpReceiver() as receiver, pytest.MonkeyPatch.context() as environment:
        for name, value in receiver.environment().items():
            environment.setenv(name, value)
        site = ObservedSite(receiver, server, directory)
        yield site
        site.stop()
    server.kill()


def post(site: ObservedSite, traceparent: str | None, **payload: Any) -> str:
    """Post a direct producer's request and return its id."""
    request = site.producer.request(PROMPT_TOKENS, **payload)
    unshared = request.payload.model_copy(update={"cache_salt": request.id})  # every chunk must be visible
    request = replace(request, payload=unshared)
    site.producer.add(replace(request, traceparent=traceparent).fields())
    return request.id


def check_phases(phases: dict[str, ReceivedSpan], process: ReceivedSpan, names: list[Span]) -> None:
    """Check for these phases, one after the other inside the epoch; those before the claim began earlier."""
    assert sorted(phases, key=lambda name: phases[name].start_ns) == names
    ordered = [phases[name] for name in names]
    assert {phase.kind for phase in ordered} == {"INTERNAL"}
    assert {phase.trace_id for phase in ordered} == {process.trace_id}
    for phase in ordered:
        assert phase.start_ns <= phase.end_ns <= process.end_ns
        assert all(phase.start_ns <= event.time_ns <= phase.end_ns for event in phase.events)
    for before, after in pairwise(ordered):
        assert before.end_ns <= after.start_ns + 1000


def test_a_request_over_http_is_one_trace_from_the_client_to_the_last_write(site: ObservedSite) -> None:
    site.ensure_workers(1)
    body = {"model": MODEL, "prompt": LONG_COUNT[0], "max_tokens": 20, "temperature": 0}
    answer = httpx.post(f"{site.gateway.url}/v1/completions", json=body, headers=HEADERS, timeout=PATIENCE_S)
    request_id = answer.json()["id"]
    [(epoch, started)] = site.started_events(request_id)
    process = site.process_span(started.traceparent)
    server = site.receiver.wait_for(lambda receiver: [one for one in receiver.spans if one.kind == "SERVER"])[0]
    send = site.receiver.wait_for(lambda receiver: receiver.span(process.trace_id, process.parent_id))
    assert (server.trace_id, server.parent_id) == (CLIENT_TRACE, CLIENT_SPAN)
    assert (send.name, send.kind, send.parent_id) == (f"send {TEMPLATE}", "PRODUCER", server.span_id)
    assert (process.name, process.kind, process.service) == (f"process {TEMPLATE}", "CONSUMER", "orcastream-worker")
    assert (process.trace_id, process.links, process.status) == (CLIENT_TRACE, [], "UNSET")
    usage = answer.json()["usage"]
    assert process.attributes == {
        Attribute.OPERATION: "text_completion",
        Attribute.PROVIDER: "orcastream",
        Attribute.MODEL: MODEL,
        Attribute.MAX_TOKENS: 20,
        Attribute.CHOICES: 1,
        Attribute.RESPONSE_ID: request_id,
        Attribute.FINISH_REASONS: ["length"],
        Attribute.OUTCOME: "length",
        Attribute.INPUT_TOKENS: usage["prompt_tokens"],
        Attribute.OUTPUT_TOKENS: 20,
        Attribute.CACHED_TOKENS: 0,
        Attribute.MESSAGING_SYSTEM: "redis",
        Attribute.MESSAGING_OPERATION: "process",
        Attribute.MESSAGING_OPERATION_TYPE: "process",
        Attribute.DESTINATION: TEMPLATE,
        Attribute.CONSUMER_GROUP: "workers",
        Attribute.CLIENT_ID: started.worker,
        Attribute.MESSAGE_ID: send.attributes[Attribute.MESSAGE_ID],
        Attribute.REQUEST_CLASS: "normal",
        Attribute.TENANT: "default",
        Attribute.EPOCH: epoch.epoch,
        Attribute.DELIVERIES: 1,
        Attribute.PREEMPTIONS: 0,
        Attribute.CONTINUED_TOKENS: 0,
    }
    phases = site.children(process)
    check_phases(phases, process, PHASES)
    assert phases[Span.QUEUE].end_ns <= process.start_ns == phases[Span.WAIT].start_ns
    [begun] = [event for event in server.events if event.name == SpanEvent.EPOCH]
    assert begun.attributes == {
        Attribute.WORKER: started.worker,
        Attribute.EPOCH: epoch.epoch,
        Attribute.CONTINUED_TOKENS: 0,
    }
    assert Attribute.TAKEN_OVER_FROM not in server.attributes
    chunks = [event.attributes[Attribute.CHUNK_TOKENS] for event in phases[Span.PREFILL].events]
    assert sum(chunks) == usage["prompt_tokens"]
    assert [event.name for event in phases[Span.DECODE].events] == [SpanEvent.FIRST_TOKEN]


def test_a_server_span_of_several_prompts_has_the_sums_and_the_id_of_the_answer(site: ObservedSite) -> None:
    site.ensure_workers(1)
    trace_id = secrets.token_hex(16)
    body = {
        "model": MODEL,
        "prompt": [LONG_COUNT[0], "2 + 2 is"],
        "max_tokens": 5,
        "temperature": 0,
        "ignore_eos": True,
    }
    headers = {"traceparent": f"00-{trace_id}-{CLIENT_SPAN}-01"}
    answer = httpx.post(f"{site.gateway.url}/v1/completions", json=body, headers=headers, timeout=PATIENCE_S).json()
    [server] = site.receiver.wait_for(
        lambda receiver: [one for one in receiver.named("POST") if one.trace_id == trace_id]
    )
    told = {
        Attribute.RESPONSE_ID: answer["id"],
        Attribute.CHOICES: 1,
        Attribute.FINISH_REASONS: ["length", "length"],
        Attribute.INPUT_TOKENS: answer["usage"]["prompt_tokens"],
        Attribute.OUTPUT_TOKENS: 10,
    }
    assert {name: server.attributes.get(name) for name in told} == told


def test_a_direct_producers_span_is_the_parent(site: ObservedSite) -> None:
    site.ensure_workers(1)
    request_id = post(site, HEADERS["traceparent"], max_tokens=3)
    site.producer.read(request_id)
    [(_, started)] = site.started_events(request_id)
    process = site.process_span(started.traceparent)
    assert (process.trace_id, process.parent_id, process.links) == (CLIENT_TRACE, CLIENT_SPAN, [])
    chunks = [event.attributes[Attribute.CHUNK_TOKENS] for event in site.children(process)[Span.PREFILL].events]
    assert chunks == [BUDGET, BUDGET, 4]


def test_without_a_producers_span_the_epoch_is_a_root_and_iterations_have_traces_of_their_own(
    site: ObservedSite,
) -> None:
    site.ensure_workers(1)
    request_id = post(site, None, max_tokens=3)
    site.producer.read(request_id)
    [(_, started)] = site.started_events(request_id)
    process = site.process_span(started.traceparent)
    assert (process.parent_id, process.attributes[Attribute.OUTCOME]) == ("", "length")
    link = (process.trace_id, process.span_id)
    iterations = site.receiver.wait_for(lambda receiver: found if len(found := linked(receiver, link)) == 5 else [])
    assert {(one.kind, one.parent_id) for one in iterations} == {("INTERNAL", "")}
    assert len({one.trace_id for one in iterations} | {process.trace_id}) == 6
    first = iterations[0]
    assert first.attributes == {
        Attribute.MODEL: MODEL,
        Attribute.BATCH_REQUESTS: 1,
        Attribute.PREFILL_TOKENS: BUDGET,
        Attribute.DECODE_TOKENS: 0,
    }
    assert {event.name for event in first.events} == {SpanEvent.PHASE}
    assert [event.attributes[Attribute.PHASE] for event in first.events] == ["select", "build", "forward", "sample"]


def linked(receiver: OtlpReceiver, link: tuple[str, str]) -> list[ReceivedSpan]:
    """Return iterations with that link, in order of time."""
    return sorted((one for one in receiver.named(Span.ITERATION) if link in one.links), key=lambda one: one.start_ns)


def test_a_cancelled_request_ends_its_epoch_without_fault(site: ObservedSite) -> None:
    site.ensure_workers(1)
    request_id = post(site, HEADERS["traceparent"], **LONG)
    fold = Fold()
    for event_id, event in site.producer.events(request_id):
        fold.feed(event_id, event)
        if event_id.index == 3:
            site.producer.redis.set(site.producer.keys.cancel(request_id), "1", px=60_000)
            site.producer.redis.xadd(site.producer.keys.control, {"type": "cancel", "target": request_id})
    assert fold.started is not None
    process = site.process_span(fold.started.traceparent)
    assert process.attributes[Attribute.OUTCOME] == process.attributes[Attribute.ERROR_TYPE] == "cancelled"
    assert process.attributes[Attribute.OUTPUT_TOKENS] == len(fold.tokens[0])
    assert process.attributes[Attribute.FINISH_REASONS] == []
    assert process.status == "UNSET"
    check_phases(site.children(process), process, PHASES)


def test_an_epoch_after_a_kill_is_linked_to_the_one_before_it(site: ObservedSite) -> None:
    site.ensure_workers(2)
    body = {"model": MODEL, "prompt": LONG_COUNT[0], "max_tokens": 400, "temperature": 0}
    stream = Stream().post(site.gateway.url, body, {10: lambda stream: site.workers[stream.workers[-1]].kill()})
    assert stream.done
    (_, killed), (epoch, started) = site.started_events(stream.request_id)
    assert stream.workers == [killed.worker, started.worker]
    process = site.process_span(started.traceparent)
    send = site.receiver.wait_for(lambda receiver: receiver.span(process.trace_id, process.parent_id))
    assert send.name == f"send {TEMPLATE}"
    assert process.links == [span_ids(killed.traceparent)], "from a span that was never exported: its worker died"
    assert span_ids(killed.traceparent)[0] == process.trace_id
    assert process.attributes[Attribute.EPOCH] == epoch.epoch
    assert process.attributes[Attribute.DELIVERIES] == 2, "it counts until it has brought a token"
    assert process.attributes[Attribute.CONTINUED_TOKENS] >= 10
    assert (process.attributes[Attribute.OUTCOME], process.status) == (stream.finish_reason, "UNSET")
    check_phases(site.children(process), process, PHASES[1:])
    server = site.receiver.wait_for(lambda receiver: receiver.span(process.trace_id, send.parent_id))
    epochs = [event.attributes for event in server.events if event.name == SpanEvent.EPOCH]
    assert [event[Attribute.WORKER] for event in epochs] == stream.workers
    assert epochs[1][Attribute.CONTINUED_TOKENS] == process.attributes[Attribute.CONTINUED_TOKENS]
    for span in (server, process):
        assert span.attributes[Attribute.TAKEN_OVER_FROM] == killed.worker
    line = site.receiver.wait_for(
        lambda receiver: [log for log in receiver.logs if log.attributes.get("request") == stream.request_id]
    )[0]
    assert (line.body, line.trace_id) == ("request taken over", process.trace_id), "logs use the same path"


def test_a_fenced_epoch_says_so_and_the_next_is_linked_to_the_rivals(site: ObservedSite) -> None:
    site.ensure_workers(1)
    request_id = post(site, None, **LONG)
    key, rival = site.producer.keys.reply(request_id), f"00-{'e' * 32}-{'f' * 16}-01"
    for event_id, event in site.producer.events(request_id):
        if isinstance(event, Started):
            _, kind, _, payload = encode_event(replace(event, traceparent=rival, worker="rival"), Form.JSON)
        elif event_id.index == 3:
            site.producer.redis.xadd(key, {"type": kind, "payload": payload}, id=f"{event_id.epoch + 10}-0")
            break
    site.producer.read(request_id)
    (_, first), _, (_, last) = site.started_events(request_id)
    fenced, process = site.process_span(first.traceparent), site.process_span(last.traceparent)
    assert (fenced.attributes[Attribute.OUTCOME], fenced.attributes[Attribute.ERROR_TYPE]) == (Outcome.FENCED,) * 2
    assert fenced.status == "ERROR"
    assert process.links == [span_ids(rival)]


def test_handed_over_epochs_are_exported_before_the_process_ends(site: ObservedSite) -> None:
    site.ensure_workers(1)
    (worker,) = site.workers.values()
    request_id = post(site, None, **LONG)
    for event_id, event in site.producer.events(request_id):
        if event_id.index == 3 and isinstance(event, Output):
            worker.signal(signal.SIGTERM)
            break
    assert worker.wait() == 0
    [(_, started)] = site.started_events(request_id)
    process = site.receiver.span(*span_ids(started.traceparent))
    assert process is not None
    assert (process.attributes[Attribute.OUTCOME], process.status) == (Outcome.HANDED_OVER, "UNSET")
    assert Attribute.ERROR_TYPE not in process.attributes
    check_phases(site.children(process), process, PHASES[:4])
    site.ensure_workers(1)
    site.producer.read(request_id)
    _, (_, continued) = site.started_events(request_id)
    again = site.process_span(continued.traceparent)
    assert again.links == [(process.trace_id, process.span_id)]
    assert again.attributes[Attribute.CONTINUED_TOKENS] == process.attributes[Attribute.OUTPUT_TOKENS]


@pytest.mark.parametrize("streams", [False, True])
def test_a_failed_request_has_a_gateway_log_line_that_leads_to_its_trace(site: ObservedSite, streams: bool) -> None:
    site.ensure_workers(1)
    for worker in site.workers.values():
        worker.signal(signal.SIGSTOP)
    try:
        body = {"model": MODEL, "prompt": PROMPT_TOKENS, "timeout": 0.5, "stream": streams}
        answer = httpx.post(f"{site.gateway.url}/v1/completions", json=body, timeout=PATIENCE_S)
    finally:
        for worker in site.workers.values():
            worker.signal(signal.SIGCONT)
    request_id = answer.headers["X-Request-Id"]
    lines = site.receiver.wait_for(
        lambda receiver: [log for log in receiver.logs if log.attributes.get("request") == request_id]
    )
    [server] = site.receiver.wait_for(
        lambda receiver: [
            span
            for span in receiver.named("POST")
            if span.attributes.get(Attribute.RESPONSE_ID) == request_id and span.status == "ERROR"
        ]
    )
    assert [(line.body, line.severity, line.attributes["code"], line.trace_id) for line in lines] == [
        ("request failed", "WARNING", "expired", server.trace_id)
    ]


@pytest.mark.parametrize(
    ("body", "code"),
    [({"prompt": "x", "suffix": "y"}, "unsupported_parameter"), ({"prompt": "x" * 5_000_000}, "body_too_large")],
    ids=["parameter", "body"],
)
def test_the_server_span_states_why_a_request_was_refused(
    site: ObservedSite, body: dict[str, object], code: str
) -> None:
    site.ensure_workers(1)
    trace_id = secrets.token_hex(16)
    answer = httpx.post(
        f"{site.gateway.url}/v1/completions",
        json={"model": MODEL, **body},
        headers={"traceparent": f"00-{trace_id}-{CLIENT_SPAN}-01"},
        timeout=PATIENCE_S,
    )
    assert answer.json()["error"]["code"] == code
    server = site.receiver.wait_for(lambda receiver: [one for one in receiver.spans if one.trace_id == trace_id])[0]
    assert (server.kind, server.attributes[Attribute.ERROR_TYPE], server.status) == ("SERVER", code, "UNSET")


def test_an_entry_that_breaks_the_contract_can_be_found_by_its_id_and_its_trace(site: ObservedSite) -> None:
    site.ensure_workers(1)
    request = site.producer.request(PROMPT_TOKENS)
    site.producer.add({**request.fields(), "payload": "nothing", **HEADERS})
    site.producer.read(request.id)
    (process,) = site.receiver.wait_for(
        lambda receiver: [span for span in receiver.spans if span.attributes.get(Attribute.RESPONSE_ID) == request.id]
    )
    assert (process.trace_id, process.parent_id, process.status) == (CLIENT_TRACE, CLIENT_SPAN, "ERROR")
    assert process.attributes[Attribute.ERROR_TYPE] == process.attributes[Attribute.OUTCOME] == "invalid_request"
    lines = [line for worker in site.workers.values() for line in worker.log.splitlines() if "request refused" in line]
    assert [request.id in line and CLIENT_TRACE in line for line in lines] == [True]
