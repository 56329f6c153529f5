"""How a worker handles requests posted directly to its request stream."""

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from orcastream.schemas.codec import Form
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Output, Started, Terminal, decode_event
from orcastream.schemas.limits import MAX_PAYLOAD_BYTES
from orcastream.text.tokenizer import Tokenizer
from tests.broker.test_unusable import JUNK
from tests.redis_server import RedisServer, one_server
from tests.worker.producer import Producer
from tests.worker.worker_process import WorkerProcess

pytestmark = one_server("system")


@pytest.fixture(scope="module")
def worker(
    redis_binary: str, shared_server: Callable[[str], RedisServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    """One worker for all tests of this module; every test must leave it alive."""
    worker = WorkerProcess(shared_server(redis_binary).url, tmp_path_factory.mktemp("worker") / "log", max_batch_size=4)
    worker.wait_serving()
    yield worker
    worker.kill()


@pytest.fixture
def producer(worker: WorkerProcess) -> Iterator[Producer]:
    """A foreign producer; the worker is alive before and after."""
    producer = Producer(worker.url)
    yield producer
    assert worker.running, worker.log
    producer.wait_empty()
    producer.redis.close()


def test_mixed_requests_equal_the_undisturbed_run(
    producer: Producer, undisturbed: Callable, tokenizer: Tokenizer
) -> None:
    prompts = [tokenizer.encode(f"Count from {start} to {start + 5}") for start in range(1, 13)]
    ids = [producer.post(prompt, max_tokens=10 + 7 * index) for index, prompt in enumerate(prompts)]
    for index, (request_id, prompt) in enumerate(zip(ids, prompts, strict=True)):
        fold = producer.read(request_id)
        assert fold.tokens[0] == undisturbed(prompt, max_tokens=10 + 7 * index)
        assert fold.terminal is not None
        assert fold.terminal.error is None


def test_json_in_json_out(producer: Producer, count_prompt: list[int]) -> None:
    request_id = producer.post(count_prompt, max_tokens=3, form=Form.JSON)
    producer.read(request_id)
    entries = producer.redis.xrange(producer.keys.reply(request_id))
    assert all(fields[b"payload"].startswith(b"{") for _, fields in entries)


def test_started_event_names_worker_and_model(producer: Producer, count_prompt: list[int]) -> None:
    request = producer.request(count_prompt, max_tokens=3, tenant="blue")
    entry_id = producer.add(request.fields())
    started = next(event for _, event in producer.events(request.id))
    assert isinstance(started, Started)
    assert (started.tenant, started.entry, started.prompt_tokens) == ("blue", f"normal {entry_id}", len(count_prompt))


def test_choices_differ_and_the_first_equals_a_single_choice(
    producer: Producer, count_prompt: list[int], undisturbed: Callable
) -> None:
    options: dict[str, Any] = {"temperature": 20.0, "seed": 3, "max_tokens": 24, "ignore_eos": True}
    fold = producer.read(producer.post(count_prompt, n=3, **options))
    assert len(fold.tokens) == 3
    assert fold.tokens[0] == undisturbed(count_prompt, **options)
    assert len({tuple(tokens) for tokens in fold.tokens}) == 3
    assert fold.terminal is not None
    assert [ending.tokens for ending in fold.terminal.endings] == [24, 24, 24]


def test_cached_prefixes_are_reported_and_shared_within_tenant_and_salt(
    producer: Producer, tokenizer: Tokenizer, undisturbed: Callable
) -> None:
    prompt = tokenizer.encode("Say the words one two three four five six seven eight nine ten in this order. " * 3)

    def ask(**options: Any) -> int:
        fold = producer.read(producer.post(prompt, max_tokens=4, **options))
        assert fold.tokens[0] == undisturbed(prompt, max_tokens=4)
        assert fold.terminal is not None
        return fold.terminal.usage.cached_tokens

    assert ask(tenant="blue") == 0
    cached_tokens = ask(tenant="blue")
    assert len(prompt) > cached_tokens >= len(prompt) - 16
    assert ask(tenant="green") == 0
    assert ask(tenant="blue", cache_salt="pepper") == 0
    assert ask(tenant="blue", cache_salt="pepper", n=2) == cached_tokens
    assert ask(tenant="red", n=3) == 0, "the other choices reuse what the first one computes"


def test_running_request_is_cancelled_within_an_iteration(producer: Producer, count_prompt: list[int]) -> None:
    request_id = producer.post(count_prompt, max_tokens=3000, ignore_eos=True)
    seen = 0
    for event_id, event in producer.events(request_id):
        seen += isinstance(event, Output)
        if seen == 5 and event_id.index == 5:
            producer.redis.set(producer.keys.cancel(request_id), 1, ex=60)
            producer.redis.xadd(producer.keys.control, {"type": "cancel", "target": request_id})
    terminal = producer.read(request_id).terminal
    assert terminal is not None
    assert terminal.error is ErrorCode.CANCELLED
    assert terminal.usage.completion_tokens < 3000


def test_a_cancel_without_a_wake_up_is_found_by_the_renewal(producer: Producer, count_prompt: list[int]) -> None:
    request_id = producer.post(count_prompt, max_tokens=3900, ignore_eos=True)
    for event_id, _ in producer.events(request_id):
        if event_id.index == 5:
            producer.redis.set(producer.keys.cancel(request_id), 1, ex=60)
    assert producer.read(request_id).terminal.error is ErrorCode.CANCELLED  # type: ignore[union-attr]


def test_a_cancel_before_the_claim_takes_effect_at_the_claim(producer: Producer, count_prompt: list[int]) -> None:
    """Before the claim, an entry by bare XADD cannot be found by its id; the key is authoritative."""
    request = producer.request(count_prompt, max_tokens=3900, ignore_eos=True)
    producer.redis.set(producer.keys.cancel(request.id), 1, ex=60)
    producer.redis.xadd(producer.keys.control, {"type": "cancel", "target": request.id})
    producer.add(request.fields())
    fold = producer.read(request.id)
    assert fold.terminal is not None
    assert (fold.terminal.error, fold.tokens) == (ErrorCode.CANCELLED, [[]])


def test_deadline_ends_a_running_request(producer: Producer, count_prompt: list[int]) -> None:
    for timeout_s in (1, 2, 4, 8, 16):  # the shortest deadline within which this machine produces a token
        fold = producer.read(producer.post(count_prompt, max_tokens=4000, ignore_eos=True, timeout_s=timeout_s))
        assert fold.terminal is not None
        assert fold.terminal.error is ErrorCode.EXPIRED
        if fold.tokens[0]:
            return
    raise AssertionError("no token within any of the deadlines")


def test_expired_on_arrival(producer: Producer, count_prompt: list[int]) -> None:
    fold = producer.read(producer.post(count_prompt, timeout_s=-5))
    assert fold.terminal is not None
    assert fold.terminal.error is ErrorCode.EXPIRED
    assert not fold.tokens[0]


@pytest.mark.parametrize("before_finish", [True, False], ids=["while the first runs", "after the first has ended"])
def test_duplicate_by_bare_xadd_is_one_request(
    producer: Producer, count_prompt: list[int], undisturbed: Callable, before_finish: bool
) -> None:
    request = producer.request(count_prompt, max_tokens=200, ignore_eos=True)
    producer.add(request.fields())
    if before_finish:
        for event_id, _ in producer.events(request.id):
            if event_id.index == 3:
                producer.add(request.fields())
    else:
        producer.read(request.id)
        producer.wait_empty()
        producer.add(request.fields())
    producer.wait_empty()
    entries = list(producer.events(request.id))
    assert sum(event.type in ("finished", "error") for _, event in entries) == 1
    fold = producer.read(request.id)
    assert fold.tokens[0] == undisturbed(count_prompt, max_tokens=200, ignore_eos=True)


SMALL_ARRAYS = msgpack.packb({"tenant": "blue", "prompt": [[1]] * (5 << 20)})
MANY_PARAMETERS = b"{%b}" % b",".join(b'"p%d":0' % (number % 300_000) for number in range(300_001))


def _prompt(length: int) -> bytes:
    return b'{"prompt":[5' + b",5" * length + b"]}"


def _bad_entries(prompt: list[int]) -> dict[str, tuple[dict[Any, Any], str]]:
    now_ms = int(time.time() * 1000)
    good = {
        "v": "1",
        "class": "normal",
        "deadline": str(now_ms + 60_000),
        "payload": b'{"prompt":[5,6],"max_tokens":2}',
    }
    return {
        "not msgpack": ({**good, "payload": b"\xc1\xff"}, "payload"),
        "empty payload": ({**good, "payload": b""}, "payload"),
        "payload missing": ({k: v for k, v in good.items() if k != "payload"}, "payload"),
        "wrong type": ({**good, "payload": b'{"prompt":"text"}'}, "prompt"),
        "wrong type of max_tokens": ({**good, "payload": b'{"prompt":[5],"max_tokens":"9"}'}, "max_tokens"),
        "token out of the vocabulary": ({**good, "payload": b'{"prompt":[5,99999999]}'}, "prompt.1"),
        "negative token": ({**good, "payload": b'{"prompt":[-5]}'}, "prompt.0"),
        "empty prompt": ({**good, "payload": b'{"prompt":[]}'}, "prompt"),
        "longer than the context": ({**good, "payload": _prompt(4200)}, "prompt"),
        "so much longer that it is read aside": ({**good, "payload": _prompt(50_000)}, "prompt"),
        "so much longer that it is not read": ({**good, "payload": _prompt(70_000)}, "payload"),
        "more than the context leaves": ({**good, "payload": b'{"prompt":[5],"max_tokens":5000}'}, "max_tokens"),
        "negative max_tokens": ({**good, "payload": b'{"prompt":[5],"max_tokens":-1}'}, "max_tokens"),
        "10 MB": ({**good, "payload": b"{" + b" " * (10 << 20)}, "payload"),
        "10 MB of small arrays": ({**good, "payload": SMALL_ARRAYS}, "payload"),
        "4 MB of small arrays": ({**good, "payload": SMALL_ARRAYS[:MAX_PAYLOAD_BYTES]}, "payload"),
        "many parameters, one of them twice": ({**good, "payload": MANY_PARAMETERS}, "payload"),
        "over the limit by a byte": ({**good, "payload": b"{" + b" " * MAX_PAYLOAD_BYTES}, "payload"),
        "unknown version": ({**good, "v": "2"}, "v"),
        "unknown field": ({**good, "colour": "blue"}, "colour"),
        "unknown parameter": ({**good, "payload": b'{"prompt":[5],"colour":1}'}, "colour"),
        "other class": ({**good, "class": "low"}, "class"),
        "a field twice": ({**good, b"deadline": good["deadline"]}, "deadline"),
        "deadline is no number": ({**good, "deadline": "soon"}, "deadline"),
        "deadline missing": ({k: v for k, v in good.items() if k != "deadline"}, "deadline"),
    }


@pytest.mark.parametrize("case", list(_bad_entries([])))
def test_a_bad_entry_gets_an_error_and_a_dead_letter(producer: Producer, case: str) -> None:
    fields, field = _bad_entries([])[case]
    request_id = secrets.token_hex(8)
    producer.add({"id": request_id, **fields})
    terminal = producer.read(request_id).terminal
    assert terminal is not None
    assert terminal.error in (ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION)
    assert terminal.field_name == field
    assert field in (terminal.message or "")
    producer.wait_empty()
    letters = producer.redis.xrange(producer.keys.dead)
    assert [letter for _, letter in letters if letter.get(b"id") == request_id.encode()]


@pytest.mark.parametrize("request_id", [None, "", "with space", "a" * 200, "braces{}", b"\xff\xfe"])
def test_an_unreadable_id_gets_only_a_dead_letter(producer: Producer, request_id: Any) -> None:
    before = producer.redis.xlen(producer.keys.dead)
    fields = {"v": "1", "deadline": "1", "payload": b"{}"}
    producer.add(fields if request_id is None else {"id": request_id, **fields})
    producer.wait_empty()
    assert producer.redis.xlen(producer.keys.dead) == before + 1


def test_an_entry_with_thousands_of_fields_blocks_no_other(producer: Producer, count_prompt: list[int]) -> None:
    request = producer.request(count_prompt, max_tokens=2)
    producer.add({**request.fields(), **{f"field{number}": "x" for number in range(20_000)}})
    terminal = producer.read(request.id).terminal
    assert terminal is not None
    assert terminal.field_name == "field0"
    assert producer.read(producer.post(count_prompt, max_tokens=2)).terminal is not None


def test_bad_payload_keeps_its_tenant(producer: Producer, count_prompt: list[int]) -> None:
    request = producer.request(count_prompt, tenant="blue")
    fields = request.fields()
    producer.add({**fields, "payload": b'{"prompt":[],"tenant":"blue"}'})
    started = next(event for _, event in producer.events(request.id))
    assert isinstance(started, Started)
    assert started.tenant == "blue"


@pytest.mark.parametrize("newest", [None, f"{2**64 - 1}-0"], ids=["no stream", "no epoch left"])
@pytest.mark.parametrize("good", [True, False], ids=["good entry", "bad entry"])
def test_an_unwritable_reply_key_ends_only_its_own_request(
    producer: Producer, count_prompt: list[int], newest: str | None, good: bool
) -> None:
    request = producer.request(count_prompt, max_tokens=2)
    key, redis = producer.keys.reply(request.id), producer.redis
    redis.set(key, "junk") if newest is None else redis.xadd(key, {"a": "b"}, newest)
    producer.add(request.fields() if good else {**request.fields(), "payload": b"{}"})
    producer.wait_empty()
    letters = [letter for _, letter in redis.xrange(producer.keys.dead) if letter.get(b"id") == request.id.encode()]
    assert [letter[b"reason"] for letter in letters] == [b"dead_letter" if good else b"invalid_request"]
    assert producer.read(producer.post(count_prompt, max_tokens=2)).terminal is not None


def test_unwritable_dead_letters_stop_no_other_request(producer: Producer, count_prompt: list[int]) -> None:
    request = producer.request(count_prompt)
    producer.redis.set(producer.keys.dead, "junk")
    producer.add({**request.fields(), "payload": b"{}"})
    assert producer.read(request.id).terminal is not None
    assert producer.read(producer.post(count_prompt, max_tokens=2)).terminal is not None
    producer.redis.delete(producer.keys.dead)
    producer.wait_empty()


def test_wrong_inner_types_in_a_reply_log_stop_no_worker(producer: Producer, count_prompt: list[int]) -> None:
    request = producer.request(count_prompt, max_tokens=2)
    for index, (kind, payload) in enumerate(JUNK):
        producer.redis.xadd(producer.keys.reply(request.id), {"type": kind, "payload": payload}, f"5-{index}")
    producer.add(request.fields())
    producer.wait_empty()
    ((_, fields),) = producer.redis.xrevrange(producer.keys.reply(request.id), count=1)
    terminal = decode_event(fields)
    assert isinstance(terminal, Terminal)
    assert terminal.error is None


@pytest.mark.parametrize("junk", ["1700-0", "urgent 1-1"])
def test_a_junk_seen_key_stops_no_worker(producer: Producer, count_prompt: list[int], junk: str) -> None:
    """The wake-ups after it still take effect."""
    request_id = producer.post(count_prompt, max_tokens=3000, ignore_eos=True)
    producer.redis.set(producer.keys.seen("x"), junk)
    for event_id, _ in producer.events(request_id):
        if event_id.index == 1:
            with producer.redis.pipeline(transaction=True) as pipeline:
                pipeline.set(producer.keys.cancel(request_id), 1, ex=60)
                for target in ("x", request_id):
                    pipeline.xadd(producer.keys.control, {"type": "cancel", "target": target})
                pipeline.execute()
    assert producer.read(request_id).terminal.error is ErrorCode.CANCELLED


def test_msgpack_with_binary_prompt(producer: Producer, count_prompt: list[int], undisturbed: Callable) -> None:
    request = producer.request(count_prompt, max_tokens=8)
    fields = type(request)(request.id, request.payload, request.deadline_ms, form=Form.MSGPACK).fields()
    producer.add(fields)
    assert producer.read(request.id).tokens[0] == undisturbed(count_prompt, max_tokens=8)


def test_log_path_is_quiet(worker: WorkerProcess) -> None:
    assert isinstance(worker.log_path, Path)
    assert "Traceback" not in worker.log
