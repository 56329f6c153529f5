"""Workers that serve LoRA adapters in addition to the model: answers, refusals, and takeovers."""

import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from orcastream import demo
from orcastream.broker.fold import Fold
from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.model.load import load_model, load_model_config, resolve_device
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Started
from orcastream.schemas.keys import GROUP
from orcastream.schemas.sampling import SamplingParams
from tests.lora import merged, save_adapter
from tests.redis_server import one_server
from tests.worker.conftest import StartWorker
from tests.worker.producer import LONG, Producer
from tests.worker.worker_process import PACED, WorkerProcess

pytestmark = one_server("system")

NAMES = ("counts", "spells", "sums")
Expected = Callable[..., list[int]]


@pytest.fixture(scope="module")
def network() -> Any:
    config = EngineConfig(str(demo.MODEL_DIR), device="cpu", dtype="float32")
    return load_model(config, load_model_config(config), resolve_device("cpu"))


@pytest.fixture(scope="module")
def folder(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(NAMES):
        save_adapter(network, folder / name, seed=seed)
    return folder


@pytest.fixture(scope="module")
def expected(network: Any, folder: Path) -> Expected:
    """The output of an engine whose weights PEFT has changed."""

    @cache
    def engine(adapter: str) -> OrcaEngine:
        model = merged(network, folder / adapter) if adapter else network
        return OrcaEngine(EngineConfig("merged", kv_cache_memory=1 << 24, prefix_cache=False), model)

    def generate(adapter: str, prompt: list[int], **sampling: Any) -> list[int]:
        params = SamplingParams(**{"temperature": 0.0, **sampling})
        return list(engine(adapter).generate([prompt], params)[0].output_ids)

    return generate


def error_of(fold: Fold) -> tuple[ErrorCode | None, str | None, str | None]:
    assert fold.terminal is not None
    return fold.terminal.error, fold.terminal.field_name, fold.terminal.message


def test_requests_with_different_adapters_and_without(
    producer: Producer, start_worker: StartWorker, folder: Path, expected: Expected, count_prompt: list[int]
) -> None:
    name = start_worker(adapters=str(folder), max_adapters=2, lease_ms=60_000).wait_serving()
    assert producer.redis.hget(producer.keys.worker(name), "adapters") == b"counts,spells,sums"
    asked = [adapter for adapter in ("", *NAMES) for _ in range(3)]
    ids = [producer.post(count_prompt, adapter=adapter, max_tokens=12, ignore_eos=True) for adapter in asked]
    found = [producer.read(request_id).tokens[0] for request_id in ids]
    assert found == [expected(adapter, count_prompt, max_tokens=12, ignore_eos=True) for adapter in asked]
    assert len(set(map(tuple, found))) == 4
    producer.wait_empty()


def test_an_adapter_that_the_worker_lacks(
    producer: Producer, start_worker: StartWorker, folder: Path, count_prompt: list[int]
) -> None:
    worker = start_worker(adapters=f"counts={folder / 'counts'}")
    worker.wait_serving()
    fold = producer.read(producer.post(count_prompt, adapter="sums", max_tokens=3))
    assert error_of(fold) == (ErrorCode.INVALID_REQUEST, "adapter", "adapter: got 'sums', allowed: counts")
    assert producer.read(producer.post(count_prompt, adapter="counts", max_tokens=3)).tokens[0]


def test_an_adapter_is_refused_if_none_are_configured(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    start_worker().wait_serving()
    error, field, message = error_of(producer.read(producer.post(count_prompt, adapter="sums", max_tokens=3)))
    assert (error, field) == (ErrorCode.INVALID_REQUEST, "adapter")
    assert message == "adapter: got 'sums', allowed: none: this worker has no adapters"


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 7, "n": 2}], ids=["greedy", "sampled"])
def test_a_takeover_continues_with_the_adapter(
    producer: Producer,
    start_worker: StartWorker,
    folder: Path,
    expected: Expected,
    count_prompt: list[int],
    sampling: dict[str, Any],
) -> None:
    workers = [start_worker(adapters=str(folder), patch=PACED) for _ in range(2)]
    by_name: dict[str, WorkerProcess] = {worker.wait_serving(): worker for worker in workers}
    request_id = producer.post(count_prompt, adapter="spells", **LONG, **sampling)
    fold = producer.read_past_a_kill(request_id, by_name)
    if not sampling:
        assert fold.tokens[0] == expected("spells", count_prompt, **LONG)
    undisturbed = producer.read(
        producer.post(count_prompt, adapter="spells", **LONG, **sampling | {"seed": fold.first_seed})
    )
    assert fold.tokens == undisturbed.tokens


def test_a_damaged_adapter_ends_only_its_own_requests(
    producer: Producer, start_worker: StartWorker, folder: Path, network: Any, count_prompt: list[int], tmp_path: Path
) -> None:
    """The adapter was intact when the worker checked it at startup."""
    damaged = save_adapter(network, tmp_path / "damaged", seed=9)
    worker = start_worker(adapters=f"damaged={damaged},sums={folder / 'sums'}")
    worker.wait_serving()
    (damaged / "adapter_model.safetensors").write_bytes(b"nothing")
    others = [producer.post(count_prompt, adapter=adapter, max_tokens=20) for adapter in ("sums", "")]
    error, field, message = error_of(producer.read(producer.post(count_prompt, adapter="damaged", max_tokens=3)))
    assert (error, field) == (ErrorCode.ENGINE_ERROR, "adapter")
    assert message is not None
    assert message.startswith("the adapter 'damaged' cannot be read: ")
    assert "an adapter cannot be read" in worker.log
    for request_id in others:
        assert error_of(producer.read(request_id)) == (None, None, None)
    assert worker.running
    producer.wait_empty()


def test_a_request_that_waits_for_a_slot_is_cancelled_at_once_or_served_in_turn(
    producer: Producer, start_worker: StartWorker, folder: Path, expected: Expected, count_prompt: list[int]
) -> None:
    start_worker(adapters=str(folder), max_adapters=1).wait_serving()
    first = producer.post(count_prompt, adapter="counts", max_tokens=3000, ignore_eos=True)
    events = producer.events(first)
    assert isinstance(next(events)[1], Started)
    next(events)
    waiting = [
        producer.post(count_prompt, adapter=adapter, max_tokens=9, ignore_eos=True) for adapter in ("sums", "spells")
    ]
    base = producer.post(count_prompt, max_tokens=9, ignore_eos=True)
    assert producer.read(base).tokens[0] == expected("", count_prompt, max_tokens=9, ignore_eos=True)
    for request_id in (waiting[0], first):
        producer.redis.set(producer.keys.cancel(request_id), 1, ex=60)
        producer.redis.xadd(producer.keys.control, {"type": "cancel", "target": request_id})
        assert error_of(producer.read(request_id))[0] is ErrorCode.CANCELLED
    assert producer.read(waiting[1]).tokens[0] == expected("spells", count_prompt, max_tokens=9, ignore_eos=True)
    producer.wait_empty()


def test_a_drain_does_not_wait_for_an_adapter_slot(
    producer: Producer, start_worker: StartWorker, folder: Path, expected: Expected, count_prompt: list[int]
) -> None:
    """A request that waits for a slot is handed over together with the request that holds it."""
    leaving = start_worker(adapters=str(folder), max_adapters=1, drain_grace_s=0, patch=PACED)
    leaving.wait_serving()
    holder = producer.post(count_prompt, adapter="counts", max_tokens=3000, ignore_eos=True)
    assert isinstance(next(producer.events(holder))[1], Started)
    waiting = producer.post(count_prompt, adapter="sums", max_tokens=9, ignore_eos=True)
    while producer.redis.xpending(producer.keys.requests("normal"), GROUP)["pending"] < 2:
        assert leaving.running, leaving.log
        time.sleep(0.01)
    leaving.signal(signal.SIGTERM)
    assert leaving.wait() == 0
    start_worker(adapters=str(folder))
    assert producer.read(waiting).tokens[0] == expected("sums", count_prompt, max_tokens=9, ignore_eos=True)
    producer.redis.set(producer.keys.cancel(holder), 1, ex=60)
    assert error_of(producer.read(holder))[0] is ErrorCode.CANCELLED
    producer.wait_empty()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"adapters": "/nowhere"}, "adapters: got '/nowhere', allowed: an existing folder"),
        ({"adapters": "counts={folder}/counts", "max_adapter_rank": 2}, "r: got 4 for model.layers.0"),
    ],
)
def test_startup_fails_on_settings_that_cannot_be_served(
    start_worker: StartWorker, folder: Path, settings: dict[str, Any], message: str
) -> None:
    worker = start_worker(**{**settings, "adapters": settings["adapters"].format(folder=folder)})
    assert worker.wait() == 2
    assert message in worker.log
