"""The life cycle of a request."""

import pytest

from orcastream.engine.errors import IllegalTransition
from orcastream.engine.kv.digest import ContentChain
from orcastream.engine.kv.sequence import Sequence
from orcastream.engine.request import Request, RequestState
from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.seed import derived_seed
from orcastream.schemas.stopping import FinishReason

KV = Sequence(0, 1, ContentChain("", ""))


def make(**changes: object) -> Request:
    request = Request("r", (1, 2, 3), SamplingParams(max_tokens=4), **changes)  # type: ignore[arg-type]
    request.arrive(0)
    return request


def test_the_complete_life_cycle_stamps_the_timeline() -> None:
    request = make()
    assert request.state is RequestState.WAITING
    request.initiate(KV, 0)
    assert request.state is RequestState.INITIATION
    request.launch(2)
    assert request.state is RequestState.INITIATION
    request.launch(1)
    assert request.state is RequestState.INCREMENT
    assert (request.num_pending, request.num_uncomputed) == (1, 1)
    request.append(9)
    assert (request.tokens, request.output_ids, request.num_outputs) == ([1, 2, 3, 9], [9], 1)
    request.launch(1)
    request.append(8)
    request.kv = None
    request.finish(FinishReason.LENGTH)
    line = request.timeline
    stamps = [line.submitted_s, line.scheduled_s, line.first_token_s, line.finished_s]
    assert None not in stamps
    assert stamps == sorted(stamps)  # type: ignore[type-var]
    assert request.finish_reason is FinishReason.LENGTH


def test_preemption_goes_back_to_waiting_and_keeps_every_token() -> None:
    request = make()
    request.initiate(KV, 0)
    request.launch(3)
    request.append(9)
    request.preempt()
    assert request.state is RequestState.WAITING
    assert request.num_uncomputed == 4
    assert len(request.timeline.preempted_s) == 1
    request.initiate(KV, 0)
    assert request.state is RequestState.INITIATION
    assert not request.launch(3)
    # The prompt has been recomputed, but its outputs have not yet.
    with pytest.raises(IllegalTransition, match="1 tokens to compute"):
        request.append(5)
    request.launch(1)
    request.append(5)
    assert request.output_ids == [9, 5]


def test_a_continuation_counts_its_earlier_outputs() -> None:
    request = make(output_ids=(7, 8))
    assert request.num_outputs == 2
    assert request.num_uncomputed == 5
    assert request.tokens == [1, 2, 3, 7, 8]


@pytest.mark.parametrize("method", ["preempt", "append", "launch"])
def test_illegal_changes_raise(method: str) -> None:
    request = make()
    with pytest.raises(IllegalTransition):
        getattr(request, method)(*([] if method == "preempt" else [1]))


def test_a_finished_request_stays_finished() -> None:
    request = make()
    request.finish(None)
    for call in (lambda: request.initiate(KV, 0), request.preempt, lambda: request.finish(None)):
        with pytest.raises(IllegalTransition):
            call()


def test_more_tokens_than_exist_cannot_be_computed() -> None:
    request = make()
    request.initiate(KV, 0)
    with pytest.raises(IllegalTransition):
        request.launch(4)


def test_blocks_must_be_released_first() -> None:
    request = make()
    request.initiate(KV, 0)
    with pytest.raises(IllegalTransition, match="blocks"):
        request.finish(None)


def test_a_request_cannot_arrive_twice() -> None:
    with pytest.raises(IllegalTransition, match="submitted before"):
        make().arrive(1)


def test_seed_is_given_or_derived() -> None:
    assert Request("r", (1,)).seed == derived_seed("r")
    assert Request("r", (1,), SamplingParams(seed=3)).seed == 3
    assert Request("r", (1,), SamplingParams(seed=3), seed=5).seed == 5
    assert Request("r", (1,), SamplingParams(seed=3), seed=0).seed == 0
