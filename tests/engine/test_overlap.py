"""An iteration planned while the previous one computes generates the same tokens, one call later."""

import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from orcastream.engine import OrcaEngine, Request, TokenEvent
from orcastream.engine.batch import executor, prompt_rows
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.batch.iteration import Drawn, Pending
from orcastream.engine.memory_errors import is_out_of_memory
from orcastream.engine.sampling.likeliest import ranked
from orcastream.engine.sampling.sampler import Sampled, SamplingRow, sample
from orcastream.schemas.sampling import SamplingParams
from tests.engine.running import MakeEngine, break_row, crowd, request, run, tokens

Requests = Callable[[int], list[Request]]
Forward = Callable[[FlatBatch], torch.Tensor]


def test_the_events_arrive_with_the_next_call(make_engine: MakeEngine) -> None:
    engine = make_engine(overlap="on")
    engine.submit(request("a", max_tokens=3))
    counts = []
    while engine.has_work:
        counts.append(len(engine.step()))
        engine.check_integrity()
    assert counts == [0, 1, 1, 1]


def test_nothing_of_a_request_that_fails_after_its_preemption_is_reused(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"policy": "priority", "max_batch_size": 1, "max_num_batched_tokens": 8}
    engine = make_engine(overlap="on", **settings)
    break_row(engine, monkeypatch, row=0, call=2)
    prompt = tuple(range(1, 31))
    engine.submit(Request("a", prompt, SamplingParams(max_tokens=4), priority_class="low", prompt_logprobs=0))
    assert engine.step() + engine.step() == []
    engine.submit(Request("b", (50, 51), SamplingParams(max_tokens=2), priority_class="realtime", waited_s=10.0))
    (failed,) = engine.step()
    assert (failed.request_id, engine.stats().preemptions) == ("a", 1)
    while engine.has_work:
        engine.step()
    again = request("again", prompt)
    run(engine, again)
    assert again.cached_tokens == 0


def likeliest(count: int) -> list[Request]:
    """Return greedy requests of different lengths, some with a token that ends them early."""
    return [
        request(
            f"{index}", tuple(range(1, 4 + 5 * index)), max_tokens=6 + index, stop_token_ids=(7 * index, 7 * index + 1)
        )
        for index in range(count)
    ]


def order_of_calls(engine: OrcaEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records launches and reads from here on."""
    calls: list[str] = []
    launch, draw = engine._executor.launch, engine._executor.draw

    def launched(*arguments: Any) -> None:
        launch(*arguments)
        calls.append("launch")

    def drawn(pending: Pending) -> Drawn:
        calls.append("draw")
        return draw(pending)

    monkeypatch.setattr(engine._executor, "launch", launched)
    monkeypatch.setattr(engine._executor, "draw", drawn)
    return calls


def test_an_iteration_is_launched_before_the_previous_tokens_are_read(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(overlap="on")
    calls = order_of_calls(engine, monkeypatch)
    found = run(engine, request("a", max_tokens=4))
    assert calls == ["launch", *["launch", "draw"] * 3, "draw"]
    assert tokens(found["a"]) == tokens(run(make_engine(), request("a", max_tokens=4))["a"])


def test_a_random_draw_is_read_first(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next iteration needs a token that the host draws if the device has no kernel for it."""

    def requests() -> list[Request]:
        return [request("a", max_tokens=8), request("b", (9, 8, 7), max_tokens=2, temperature=1.0, seed=3)]

    engine = make_engine(overlap="on")
    calls = order_of_calls(engine, monkeypatch)
    found = run(engine, *requests())
    assert calls[:4] == ["launch", "draw", "launch", "draw"]
    assert calls[4:] == ["launch", *["launch", "draw"] * 5, "draw"]  # once the other request has ended
    expected = run(make_engine(), *requests())
    assert {name: tokens(each) for name, each in found.items()} == {
        name: tokens(each) for name, each in expected.items()
    }


def test_a_request_without_a_score_ends_alone_after_a_launch(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next iteration has been launched with whatever token the device chose for it."""
    alone = tokens(run(make_engine(), request("b", (9, 8, 7), max_tokens=9))["b"])
    engine = make_engine(overlap="on")
    break_row(engine, monkeypatch, row=0, call=4)
    found = run(engine, request("a", max_tokens=9), request("b", (9, 8, 7), max_tokens=9))
    failed, other = (found["a"], found["b"]) if found["a"][-1].error else (found["b"], found["a"])
    assert len(failed) == 4
    assert "no finite score" in (failed[-1].error or "")
    assert len(other) == 9
    assert other is found["a"] or tokens(other) == alone
    engine.check_integrity()


@pytest.mark.parametrize("requests", [crowd, likeliest])
@pytest.mark.parametrize("num_blocks", [20, 30, 256])
def test_tokens_are_the_same(num_blocks: int, requests: Requests, make_engine: MakeEngine) -> None:
    expected = run(make_engine(num_blocks=256), *requests(12))
    engine = make_engine(num_blocks=num_blocks, overlap="on", max_num_batched_tokens=16, max_batch_size=8)
    found = run(engine, *requests(12))
    assert {name: tokens(each) for name, each in found.items()} == {
        name: tokens(each) for name, each in expected.items()
    }


def test_a_stop_token_ends_a_request_whose_next_token_is_being_computed(make_engine: MakeEngine) -> None:
    alone = tokens(run(make_engine(), request("a", max_tokens=12))["a"])
    stop = alone[4]
    assert stop is not None
    expected = alone[: alone.index(stop) + 1]
    engine = make_engine(overlap="on")
    found = run(engine, request("a", max_tokens=12, stop_token_ids=(stop,)), request("b", (9, 8, 7), max_tokens=30))
    assert tokens(found["a"]) == expected
    assert tokens(found["b"]) == tokens(run(make_engine(), request("b", (9, 8, 7), max_tokens=30))["b"])


@pytest.mark.parametrize("of", [crowd, likeliest])
@pytest.mark.parametrize("seed", range(5))
def test_cancels_at_any_time(seed: int, of: Requests, make_engine: MakeEngine) -> None:
    choose = random.Random(seed)
    expected = run(make_engine(num_blocks=256), *of(10))
    engine = make_engine(num_blocks=60, overlap="on", max_num_batched_tokens=16, max_batch_size=8)
    requests = of(10)
    for each in requests:
        engine.submit(each)
    found: dict[str, list[TokenEvent]] = {each.id: [] for each in requests}
    cancelled: set[str] = set()
    while engine.has_work:
        for event in engine.step():
            assert event.request_id not in cancelled
            found[event.request_id].append(event)
        if choose.random() < 0.3:
            name = choose.choice(requests).id
            if engine.cancel(name):
                cancelled.add(name)
        engine.check_integrity()
    assert cancelled
    for name, events in found.items():
        assert tokens(events) == tokens(expected[name])[: len(events)]
        assert name in cancelled or len(events) == len(expected[name])


@pytest.mark.parametrize("policy", ["fair", "priority", "slo"])
def test_a_running_request_is_preempted(policy: str, make_engine: MakeEngine) -> None:
    alone = run(make_engine(), request("a", max_tokens=40), request("b", (9, 8, 7), max_tokens=3))
    engine = make_engine(policy=policy, overlap="on", max_batch_size=2)
    running = [request(name, max_tokens=40) for name in ("a", "other")]
    urgent = request("b", (9, 8, 7), max_tokens=3)
    urgent.tenant, urgent.priority_class, urgent.ttft_slo_ms = "light", "realtime", 0.001
    for each in running:
        each.tenant, each.priority_class = "heavy", "low"
        engine.submit(each)
    for _ in range(5):
        engine.step()
    engine.submit(urgent)
    while urgent.finish_reason is None:
        engine.step()
        engine.check_integrity()
    assert all(each.finish_reason is None for each in running)
    while engine.has_work:
        engine.step()
    assert engine.stats().preemptions == 1
    assert list(running[0].output_ids) == tokens(alone["a"])
    assert list(urgent.output_ids) == tokens(alone["b"])


def no_device_memory() -> None:
    raise torch.OutOfMemoryError("no memory")


def no_host_memory() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


@pytest.mark.parametrize("fail", [no_device_memory, no_host_memory])
def test_without_memory_less_is_computed_at_a_time(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]
) -> None:
    expected = run(make_engine(num_blocks=256), *crowd())
    for overlap in ("off", "on"):
        engine = make_engine(num_blocks=256, overlap=overlap)
        forward: Forward = engine._runner.forward
        sizes: list[int] = []

        def limited(batch: FlatBatch, *_: object, forward: Forward = forward, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(batch.input_ids.shape[1])
            if sizes[-1] > 10:
                fail()
            return forward(batch)

        monkeypatch.setattr(engine._runner, "forward", limited)
        found = run(engine, *crowd())
        assert {name: tokens(each) for name, each in found.items()} == {
            name: tokens(each) for name, each in expected.items()
        }
        assert max(sizes) > 10
        assert not any(event.error for events in found.values() for event in events)


@pytest.mark.parametrize("fail", [no_device_memory, no_host_memory])
def test_without_memory_for_sampling_fewer_rows_are_sampled_at_a_time(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]
) -> None:
    expected = run(make_engine(num_blocks=256), *crowd())
    counts = []

    def limited(logits: torch.Tensor, rows: Sequence[SamplingRow], *more: Any) -> list[Sampled]:
        counts.append(len(rows))
        if len(rows) > 2:
            fail()
        return sample(logits, rows, *more)

    monkeypatch.setattr(executor, "sample", limited)
    assert run(make_engine(num_blocks=256), *crowd()) == expected
    assert max(counts) > 2


def test_a_failed_attempt_leaves_its_memory_to_the_next(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error's traceback refers to the tensors of the attempt while the error is handled."""
    made: list[weakref.ref[torch.Tensor]] = []
    failed: set[str] = set()

    def attempts(compute: Callable[..., Any], is_too_large: Callable[..., bool]) -> Callable[..., Any]:
        def attempt(*arguments: Any) -> Any:
            assert not any(each() is not None for each in made)
            tensor = torch.empty(1)
            made.append(weakref.ref(tensor))
            if is_too_large(*arguments):
                failed.add(compute.__name__)
                no_device_memory()
            return compute(*arguments)

        return attempt

    engine = make_engine(num_blocks=256, overlap="off")
    forward, relieve = engine._runner.forward, engine._scheduler.relieve
    monkeypatch.setattr(engine._runner, "forward", attempts(forward, lambda batch, _: batch.input_ids.shape[1] > 10))
    monkeypatch.setattr(engine._scheduler, "relieve", attempts(relieve, lambda plan: False))
    monkeypatch.setattr(executor, "sample", attempts(sample, lambda logits, rows, *more: len(rows) > 1))
    monkeypatch.setattr(prompt_rows, "ranked", attempts(ranked, lambda logits, rows, count: len(rows) > 2))
    asking = Request("asking", tuple(range(9)), SamplingParams(max_tokens=2), prompt_logprobs=1)
    run(engine, *crowd(), asking)
    assert failed == {"forward", "sample", "ranked"}


@pytest.mark.parametrize("fail", [no_device_memory, no_host_memory])
def test_without_memory_for_one_token_the_engine_fails(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]
) -> None:
    """It would end every request with an error, one after the other."""
    engine = make_engine()
    monkeypatch.setattr(engine._runner, "forward", lambda *_: fail())
    with pytest.raises(RuntimeError) as raised:
        run(engine, request("a"), request("b"))
    assert is_out_of_memory(raised.value)


def test_a_request_that_failed_may_be_cancelled_before_its_event(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("no")

    engine = make_engine(overlap="on")
    with monkeypatch.context() as patched:
        patched.setattr(engine._runner, "forward", fail)
        engine.submit(request("a"))
        assert engine.step() == []
    assert engine.cancel("a")
    assert engine.step() == []
    engine.check_integrity()
    assert tokens(run(engine, request("b"))["b"])


def test_a_group_larger_than_a_reduced_request_limit_runs(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only iterations lift the limit on requests, so it must not block the only work."""
    engine = make_engine(max_batch_size=4)
    forward, failures = engine._runner.forward, [torch.OutOfMemoryError("for once")]

    def fail_once(batch: FlatBatch, *_: object) -> torch.Tensor:
        if failures:
            raise failures.pop()
        return forward(batch)

    monkeypatch.setattr(engine._runner, "forward", fail_once)
    run(engine, request("a"))
    group = [Request(f"g{number}", (5, 6), SamplingParams(max_tokens=2), group="g") for number in range(4)]
    for each in group:
        engine.submit(each)
    for _ in range(10):
        engine.step()
        engine.check_integrity()
    assert [each.num_outputs for each in group] == [2] * 4
