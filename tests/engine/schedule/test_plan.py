"""A plan counts its tokens by kind."""

from engine.schedule.plan import Plan
from tests.engine.schedule.pretended import request


def test_tokens_by_kind() -> None:
    plan = Plan([request(2), request(9), request(5)], [1, 8, 5], 1)
    assert (len(plan), plan.num_tokens, plan.prefill_tokens) == (3, 14, 13)
    assert not Plan()


def test_one_request_alone() -> None:
    decoding, prefilling = request(2), request(9)
    plan = Plan([decoding, prefilling], [1, 8], 1)
    assert plan.only(0) == Plan([decoding], [1], 1)
    assert plan.only(1) == Plan([prefilling], [8], 0)
