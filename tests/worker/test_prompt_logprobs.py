"""Log probabilities of a prompt in the reply log: each exactly once, all before the first token."""

import signal
from typing import Any

import pytest
import torch

from orcastream import demo
from orcastream.broker.fold import Fold
from orcastream.engine import EngineConfig
from orcastream.engine.model.load import load_model, load_model_config, resolve_device
from orcastream.schemas.codec import Form
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Event, EventId, Output, PromptRun, Run, Started, Terminal, encode_event
from orcastream.schemas.limits import MAX_PROMPT_LOGPROBS_IN_EVENT
from orcastream.schemas.stopping import FinishReason
from tests.redis_server import one_server
from tests.worker.conftest import StartWorker
from tests.worker.producer import Producer
from tests.worker.worker_process import MODEL

pytestmark = one_server("embedded")

Items = list[Any]
"""Log probabilities and rank of each token of a prompt."""


@pytest.fixture(scope="module")
def network() -> Any:
    config = EngineConfig(str(demo.MODEL_DIR), device="cpu", dtype="float32")
    return load_model(config, load_model_config(config), resolve_device("cpu"))


@pytest.fixture
def long_prompt(count_prompt: list[int]) -> list[int]:
    return (count_prompt * 60)[:300]


def check(network: Any, prompt: list[int], items: Items, count: int, *, begin: int = 0) -> None:
    """Check that `items` match a plain forward pass for the tokens of `prompt` from `begin` on."""
    with torch.inference_mode():
        rows = network(torch.tensor([prompt])).logits[0].double().log_softmax(dim=-1)
    assert len(items) == len(prompt) - begin
    for position, (item, rank) in enumerate(items, begin):
        if position == 0:
            assert (item, rank) == (None, None)
            continue
        own, likeliest = item
        row = rows[position - 1]
        assert own == pytest.approx(row[prompt[position]].item(), abs=1e-3)
        above = [int((row > row[prompt[position]] + margin).sum()) for margin in (1e-3, -1e-3)]
        assert above[0] < rank <= above[1] + 1
        assert [value for _, value in likeliest] == pytest.approx(row.topk(count).values.tolist(), abs=1e-3)


def items_in(run: PromptRun) -> Items:
    """Return the items of one event."""
    assert run.ranks is not None
    return list(zip(run.logprobs, run.ranks, strict=True))


def read(producer: Producer, request_id: str) -> tuple[Fold, list[Event]]:
    fold, events = Fold(), []
    for event_id, event in producer.events(request_id):
        fold.feed(event_id, event)
        events.append(event)
    assert fold.prompt_told == fold.prompt_expected
    return fold, events


def items_of(events: list[Event], prompt: list[int]) -> Items:
    """Return the items of all prompt events; no position occurs twice and none occurs after a token."""
    items: Items = []
    for event in events:
        if isinstance(event, PromptRun):
            assert event.position == len(items)
            assert list(event.tokens) == prompt[event.position : event.end]
            items += items_in(event)
        elif isinstance(event, Output):
            assert len(items) == len(prompt)
    return items


@pytest.mark.parametrize("budget", [16, 256])
@pytest.mark.parametrize("payload", [{"n": 3, "logprobs": 1}, {"best_of": 2}, {"stop": ["never said"]}])
def test_they_come_before_the_first_token(
    producer: Producer,
    start_worker: StartWorker,
    network: Any,
    long_prompt: list[int],
    budget: int,
    payload: dict[str, Any],
) -> None:
    start_worker(max_num_batched_tokens=budget, max_batch_size=8)
    plain = producer.post(long_prompt, max_tokens=6, **payload)
    asking = producer.post(long_prompt, max_tokens=6, prompt_logprobs=2, **payload)
    fold, events = read(producer, asking)
    check(network, long_prompt, items_of(events, long_prompt), 2)
    assert fold.tokens == producer.read(plain).tokens
    producer.wait_empty()


def test_no_event_exceeds_its_size(
    producer: Producer, start_worker: StartWorker, network: Any, count_prompt: list[int]
) -> None:
    prompt = (count_prompt * 80)[:400]
    start_worker(max_num_batched_tokens=512, max_batch_size=8)
    _, events = read(producer, producer.post(prompt, max_tokens=1, prompt_logprobs=20))
    check(network, prompt, items_of(events, prompt), 20)
    runs = [event for event in events if isinstance(event, PromptRun)]
    assert [len(run.tokens) for run in runs[:2]] == [MAX_PROMPT_LOGPROBS_IN_EVENT // 21] * 2


@pytest.mark.parametrize("asked", [2, None])
def test_nothing_is_generated(
    producer: Producer, start_worker: StartWorker, network: Any, long_prompt: list[int], asked: int | None
) -> None:
    start_worker()
    fold, events = read(producer, producer.post(long_prompt, max_tokens=0, n=2, prompt_logprobs=asked))
    assert fold.tokens == [[], []]
    assert isinstance(events[-1], Terminal)
    assert [(one.finish_reason, one.tokens) for one in events[-1].endings] == [(FinishReason.LENGTH, 0)] * 2
    assert not any(isinstance(event, Output) for event in events)
    if asked is None:
        assert len(events) == 2
    else:
        check(network, long_prompt, items_of(events, long_prompt), asked)
    producer.wait_empty()


@pytest.mark.parametrize("max_tokens", [0, 6])
@pytest.mark.parametrize("told", [1, 100, 300])
def test_a_takeover_writes_what_the_log_lacks(
    producer: Producer, start_worker: StartWorker, network: Any, long_prompt: list[int], told: int, max_tokens: int
) -> None:
    """Another worker, which wrote no ranks, is gone: in the middle of the prompt, or after all of it."""
    request = producer.request(long_prompt, max_tokens=max_tokens, prompt_logprobs=2)
    entry = f"normal {producer.add(request.fields())}"
    items = [None if not place else [-1.0, []] for place in range(told)]
    write(producer, request.id, started(long_prompt, entry), PromptRun(0, tuple(long_prompt[:told]), tuple(items)))
    start_worker()
    fold, events = read(producer, request.id)
    fresh = [event for event in events[2:] if isinstance(event, PromptRun)]
    assert [run.position for run in fresh[:1]] == ([told] if told < 300 else [])
    check(network, long_prompt, [item for run in fresh for item in items_in(run)], 2, begin=told)
    assert len(fold.tokens[0]) == max_tokens
    producer.wait_empty()


def test_a_takeover_after_the_first_token(
    producer: Producer, start_worker: StartWorker, undisturbed: Any, long_prompt: list[int]
) -> None:
    expected = undisturbed(long_prompt, max_tokens=6)
    request = producer.request(long_prompt, max_tokens=6, prompt_logprobs=2)
    entry = f"normal {producer.add(request.fields())}"
    items = (None, *[[-1.0, []] for _ in long_prompt[1:]])
    whole = PromptRun(0, tuple(long_prompt), items)
    write(producer, request.id, started(long_prompt, entry), whole, Output((Run(0, 0, tuple(expected[:2])),)))
    start_worker()
    fold, events = read(producer, request.id)
    assert fold.tokens == [expected]
    assert [event for event in events if isinstance(event, PromptRun)] == [whole]


def test_tokens_after_a_gap_are_written_again(
    producer: Producer, start_worker: StartWorker, undisturbed: Any, network: Any, long_prompt: list[int]
) -> None:
    """Redis restarted without one prompt event: entries after the gap do not count."""
    request = producer.request(long_prompt, max_tokens=6, prompt_logprobs=2)
    entry = f"normal {producer.add(request.fields())}"
    first = PromptRun(0, tuple(long_prompt[:2]), (None, [-1.0, []]))
    write(producer, request.id, started(long_prompt, entry), first, Output((Run(0, 0, (1, 2)),)))
    start_worker()
    log = [event for _, event in producer.events(request.id)]
    fresh = [event for event in log[4:] if isinstance(event, PromptRun)]
    check(network, long_prompt, [item for run in fresh for item in items_in(run)], 2, begin=2)
    assert sum((run.tokens for event in log[4:] for run in event.runs), ()) == tuple(  # type: ignore[union-attr]
        undisturbed(long_prompt, max_tokens=6)
    )


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_each_is_written_once_whatever_happens_to_the_worker(
    producer: Producer, start_worker: StartWorker, network: Any, long_prompt: list[int], fault: str
) -> None:
    workers = [start_worker(max_num_batched_tokens=16, max_batch_size=8) for _ in range(2)]
    named = {worker.wait_serving(): worker for worker in workers}
    request_id = producer.post(long_prompt, max_tokens=300, ignore_eos=True, prompt_logprobs=2)
    events: list[Event] = []
    writer = ""
    for _, event in producer.events(request_id):
        events.append(event)
        if isinstance(event, Started):
            writer = event.worker
        elif isinstance(event, PromptRun) and event.position == 0:
            hit = named[writer]
            hit.kill() if fault == "kill" else hit.signal(signal.SIGSTOP)
    if fault == "freeze":
        hit.signal(signal.SIGCONT)
    check(network, long_prompt, items_of(events, long_prompt), 2)
    producer.wait_empty()


def test_more_likeliest_tokens_than_allowed_are_refused(producer: Producer, start_worker: StartWorker) -> None:
    start_worker()
    fold = producer.read(producer.post([5] * 10, use_beam_search=False, prompt_logprobs=2, max_tokens=1))
    assert fold.terminal is not None
    assert fold.terminal.error is None
    bad = {**producer.request([5], max_tokens=1).fields(), "payload": b'{"prompt":[5],"prompt_logprobs":21}'}
    producer.add(bad)
    refused = producer.read(str(bad["id"]))
    assert refused.terminal is not None
    assert (refused.terminal.error, refused.terminal.field_name) == (ErrorCode.INVALID_REQUEST, "prompt_logprobs")


def started(prompt: list[int], entry: str) -> Started:
    return Started("gone", MODEL, "default", "normal", entry, 7, len(prompt), prompt_logprobs=2)


def write(producer: Producer, request_id: str, *events: Event) -> None:
    """Write them as a departed worker would have."""
    for index, event in enumerate(events):
        kind, name, payload, packed = encode_event(event, Form.JSON)
        entry_id = str(EventId(1, index))
        producer.redis.xadd(producer.keys.reply(request_id), {kind: name, payload: packed}, id=entry_id)


def test_a_rewritten_prompt_precedes_the_tokens(
    producer: Producer, start_worker: StartWorker, long_prompt: list[int]
) -> None:
    """Redis loses a log that already has tokens: the new log begins with the whole prompt, in several pieces."""
    start_worker(max_num_batched_tokens=512)
    request = producer.post(long_prompt, max_tokens=200, ignore_eos=True, prompt_logprobs=20, form=Form.MSGPACK)
    key = producer.keys.reply(request)
    outputs = (event for _, event in producer.events(request) if isinstance(event, Output))
    for _ in range(5):
        next(outputs)
    producer.redis.delete(key)
    fold = producer.read(request)
    assert len(fold.tokens[0]) == 200
    kinds = [fields[b"type"] for _, fields in producer.redis.xrange(key)]
    assert kinds.count(b"prompt") > 1
