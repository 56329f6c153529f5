"""What a worker process sends to a collector: exactly the metrics of names.py; and it needs no collector."""

import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from orcastream.schemas.codec import Form
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Started, encode_event
from orcastream.schemas.keys import CLASSES
from orcastream.schemas.stopping import FinishReason
from orcastream.telemetry import names
from orcastream.telemetry.names import METRICS, WORKER, Attribute, Kind, Metric
from orcastream.worker.main import ENGINE_FAILED
from tests.patience import PATIENCE_S
from tests.redis_server import one_server
from tests.telemetry.otlp_receiver import OtlpReceiver
from tests.worker import poison
from tests.worker.conftest import StartWorker
from tests.worker.producer import LONG, Producer
from tests.worker.worker_process import MODEL, PACED

pytestmark = one_server("embedded")

EXPECTED = {metric.name: metric for metric in METRICS if WORKER in metric.services}
KINDS = {Kind.HISTOGRAM: "histogram", Kind.GAUGE: "gauge", Kind.COUNTER: "sum", Kind.TOTAL: "sum"}
PER_CLASS = (names.TIME_TO_FIRST_TOKEN, names.TIME_PER_OUTPUT_TOKEN, names.QUEUE_WAIT)
PROMPT = list(range(20, 40))


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    """A collector for every process started from here on; no request is sampled."""
    with OtlpReceiver() as receiver:
        for name, value in receiver.environment(OTEL_TRACES_SAMPLER="always_off").items():
            monkeypatch.setenv(name, value)
        yield receiver


def be_fenced(producer: Producer) -> None:
    """Run a request while a rival opens an epoch; the worker is refused, and takes the request over again."""
    request_id, epochs = producer.post(PROMPT, **LONG), 0
    for event_id, event in producer.events(request_id):
        if isinstance(event, Started):
            epochs += 1
            _, kind, _, payload = encode_event(replace(event, worker="rival"), Form.JSON)
        elif event_id.index == 3 and epochs == 1:
            rivals_id = f"{event_id.epoch + 10}-0"
            producer.redis.xadd(producer.keys.reply(request_id), {"type": kind, "payload": payload}, id=rivals_id)
    assert epochs == 3


def newest(receiver: OtlpReceiver, metric: Metric, attribute: Attribute) -> dict[str, float]:
    """Return the last value of a metric for each value of one of its attributes."""
    points = [point for point in receiver.points if point.name == metric.name]
    return {point.attributes[attribute]: point.value for point in points}


def ended(receiver: OtlpReceiver) -> dict[str, float]:
    """Return the last number of ended requests for each outcome, over all classes."""
    last = {
        (point.attributes.get(Attribute.REQUEST_CLASS), point.attributes[Attribute.OUTCOME]): point.value
        for point in receiver.points
        if point.name == names.REQUESTS_ENDED.name
    }
    counts = dict.fromkeys((outcome for _, outcome in last), 0.0)
    for (_, outcome), count in last.items():
        counts[outcome] += count
    return counts


def test_metrics_match_names_with_their_units_buckets_and_attributes(
    producer: Producer, start_worker: StartWorker, receiver: OtlpReceiver
) -> None:
    worker = start_worker(patch=PACED)
    worker.wait_serving()
    lasting = producer.post(PROMPT, max_tokens=3900, ignore_eos=True)
    producer.read(producer.post(PROMPT, max_tokens=4, ignore_eos=True))
    invalid = producer.request(PROMPT)
    producer.add({**invalid.fields(), "payload": "nothing"})
    producer.read(invalid.id)
    be_fenced(producer)
    receiver.wait_for(lambda receiver: {point.name for point in receiver.points} >= set(EXPECTED))
    producer.redis.set(producer.keys.cancel(lasting), "1", px=60_000)
    producer.redis.xadd(producer.keys.control, {"type": "cancel", "target": lasting})
    # A cancel that arrives too late, on a busy machine, does not count.
    terminal = producer.read(lasting).terminal
    assert terminal is not None
    last = terminal.error or terminal.endings[0].finish_reason
    outcomes = Counter(["length", "length", "invalid_request", str(last)])
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0

    seen: dict[str, set[str]] = {}
    for point in receiver.points:
        metric = EXPECTED[point.name]
        assert (point.kind, point.unit, point.service) == (KINDS[metric.kind], metric.unit, "orcastream-worker"), point
        assert point.bounds == metric.buckets, point
        seen.setdefault(point.name, set()).update(point.attributes)
        assert point.attributes.get(Attribute.MODEL, MODEL) == MODEL
    assert seen == {metric.name: set(map(str, metric.attributes)) for metric in EXPECTED.values()}
    assert ended(receiver) == {**dict.fromkeys([*FinishReason, *ErrorCode], 0), **outcomes}
    assert newest(receiver, names.REFUSALS, Attribute.ERROR_TYPE) == {"invalid_request": 1, "unsupported_version": 0}
    for metric, count in {
        names.DEAD_LETTERS: 1,
        names.FENCING_REFUSALS: 1,
        names.TAKEOVERS: 1,
    }.items():
        assert newest(receiver, metric, Attribute.MODEL) == {MODEL: count}, metric
    first_tokens = newest(receiver, names.TIME_TO_FIRST_TOKEN, Attribute.REQUEST_CLASS)
    assert first_tokens == {**dict.fromkeys(CLASSES, 0), "normal": 3}
    input_tokens = newest(receiver, names.TOKENS, Attribute.TOKEN_TYPE)["input"]
    assert input_tokens >= len(PROMPT), "computed once, and found in the cache afterwards"
    assert newest(receiver, names.CLAIMED, Attribute.MODEL) == {MODEL: 0}
    assert not receiver.spans, "none was sampled"


def test_a_request_that_ends_while_leases_are_renewed_is_not_lost(
    producer: Producer, start_worker: StartWorker, receiver: OtlpReceiver
) -> None:
    """There is no other worker, so no lease can be lost."""
    worker = start_worker(lease_ms=500)
    worker.wait_serving()
    for request_id in [producer.post(PROMPT, max_tokens=number % 20 + 1, ignore_eos=True) for number in range(400)]:
        producer.read(request_id)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "lease lost" not in worker.log
    renewals = newest(receiver, names.LEASE_RENEWALS, Attribute.OUTCOME)
    assert renewals["lost"] == 0
    assert renewals["renewed"] > 0


def test_counters_of_alerts_and_panels_start_at_zero(start_worker: StartWorker, receiver: OtlpReceiver) -> None:
    """Otherwise the first event is invisible: the first value of a series is not an increase."""
    start_worker().wait_serving()
    receiver.wait_for(lambda receiver: {point.name for point in receiver.points} >= {one.name for one in PER_CLASS})
    for metric in PER_CLASS:
        assert newest(receiver, metric, Attribute.REQUEST_CLASS) == dict.fromkeys(CLASSES, 0), metric
    assert newest(receiver, names.LEASE_RENEWALS, Attribute.OUTCOME) == {"renewed": 0, "lost": 0}


def test_a_collector_that_never_answers_holds_up_neither_requests_nor_the_drain(
    producer: Producer, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any wait would last minutes: see the time limit of an export."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for name, value in {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{mute.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
            "OTEL_BSP_SCHEDULE_DELAY": "10",
            "OTEL_METRIC_EXPORT_INTERVAL": "50",
        }.items():
            monkeypatch.setenv(name, value)
        worker = start_worker()
        worker.wait_serving()
        mute.settimeout(PATIENCE_S)
        connection, _ = mute.accept()
        with connection:
            for _ in range(2):
                assert producer.read(producer.post(PROMPT, max_tokens=20)).terminal is not None
            worker.signal(signal.SIGTERM)
            while "drained" not in worker.log:
                assert worker.running
                time.sleep(0.01)
            while worker.running:  # a second signal does not cut the final export short
                worker.signal(signal.SIGTERM)
                time.sleep(0.05)
            assert worker.wait() == 0


def test_the_last_log_line_of_a_worker_whose_event_loop_stands_still_is_exported(
    producer: Producer, start_worker: StartWorker, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BLRP_SCHEDULE_DELAY", "600000")
    worker = start_worker(patch=poison.blocks, stall_timeout_s=1)
    worker.wait_serving()
    producer.post(PROMPT, request_id="block", max_tokens=5)
    assert worker.wait() == ENGINE_FAILED
    receiver.wait_for(lambda receiver: [line for line in receiver.logs if line.body == "the event loop stands still"])
