"""What an engine records of its last iteration, and when the chunks of a request were computed."""

import pytest
import torch

from orcastream.engine.batch.flat_batch import FlatBatch
from tests.engine.running import MakeEngine, request


def test_an_iteration_records_its_tokens_requests_and_times(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=16)
    assert engine.last_iteration is None
    engine.submit(request("a", tuple(range(20)), max_tokens=3))
    engine.step()
    first = engine.last_iteration
    assert first is not None
    assert (first.prefill_tokens, first.decode_tokens, first.request_ids, first.lengths) == (16, 0, ["a"], [16])
    engine.submit(request("b", tuple(range(10)), max_tokens=3))
    engine.step()
    both = engine.last_iteration
    assert both is not None
    assert (both.request_ids, both.lengths, both.decode_tokens) == (["a", "b"], [4, 1], 0)
    engine.step()
    last = engine.last_iteration
    assert last is not None
    assert (last.prefill_tokens, last.decode_tokens, last.num_tokens) == (0, 2, 2)
    assert set(last.request_ids) == {"a", "b"}
    phases = (last.select_s, last.build_s, last.forward_s, last.sample_s)
    assert all(seconds > 0 for seconds in phases)
    assert sum(phases) <= last.total_s
    assert last.started_s >= first.started_s + first.total_s


def test_a_retried_iteration_counts_once(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    forward, calls = engine._runner.forward, []

    def fail_once(batch: FlatBatch, *_: object) -> torch.Tensor:
        calls.append(batch)
        if len(calls) == 1:
            raise RuntimeError("transient")
        return forward(batch)

    monkeypatch.setattr(engine._runner, "forward", fail_once)
    engine.submit(request("a", tuple(range(5)), max_tokens=3))
    engine.submit(request("b", tuple(range(7, 14)), max_tokens=3))
    assert len(engine.step()) == 2
    assert len(calls) == 3
    record = engine.last_iteration
    assert record is not None
    assert (record.prefill_tokens, record.request_ids) == (12, ["a", "b"])
    assert engine.stats().iterations == 1


def test_the_timeline_has_every_chunk(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=16)
    one = request("a", tuple(range(40)), max_tokens=3)
    engine.submit(one)
    while engine.has_work:
        engine.step()
    line = one.timeline
    assert [tokens for _, tokens in line.chunks] == [16, 16, 8]
    stamps = [line.scheduled_s, *(at for at, _ in line.chunks), line.first_token_s]
    assert stamps == sorted(stamps)
