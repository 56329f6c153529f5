"""Requests that are refused at submit, and the field that the error names."""

from collections.abc import Callable
from math import inf, nan

import pytest

from orcastream.engine import Request
from orcastream.schemas.errors import InvalidRequest
from tests.engine.running import MakeEngine, request


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (lambda: request("a", ()), "prompt"),
        (lambda: request("a", (1, 96)), "prompt.1"),
        (lambda: request("a", (1, -1)), "prompt.1"),
        (lambda: request("a", (1, 2.0)), "prompt.1"),  # type: ignore[arg-type]
        (lambda: request("a", (1, nan)), "prompt.1"),  # type: ignore[arg-type]
        (lambda: request("a", ("1",)), "prompt.0"),  # type: ignore[arg-type]
        (lambda: request("a", (1,), (96,)), "output_ids.0"),
        (lambda: request("a", (1,), (1, 2.5)), "output_ids.1"),  # type: ignore[arg-type]
        (lambda: Request("a", (1,), max_tokens=2.5), "max_tokens"),  # type: ignore[arg-type]
        (lambda: Request("a", (1,), seed=0.5), "seed"),  # type: ignore[arg-type]
        (lambda: request("a", stop_token_ids=(96,)), "stop_token_ids.0"),
        (lambda: request("a", tuple(range(64))), "prompt"),
        (lambda: request("a", max_tokens=62), "max_tokens"),
        (lambda: request("a", max_tokens=None, min_tokens=62), "min_tokens"),
        (lambda: request("a", outputs=(1,) * 8), "output_ids"),
        (lambda: request("a", outputs=(1, 7), stop_token_ids=(7,)), "output_ids"),
        (lambda: request("busy"), "id"),
        (lambda: Request("a", (1,), priority_class="urgent"), "priority_class"),
        (lambda: Request("a", (1,), ttft_slo_ms=0.0), "ttft_slo_ms"),
        (lambda: Request("a", (1,), tbt_slo_ms=nan), "tbt_slo_ms"),
        (lambda: Request("a", (1,), deadline_s=nan), "deadline_s"),
        (lambda: Request("a", (1,), deadline_s=-inf), "deadline_s"),
        (lambda: Request("a", (1,), waited_s=nan), "waited_s"),
        (lambda: Request("a", (1,), seed=2**63), "seed"),
        (lambda: Request("a", (1,), seed=-(2**63) - 1), "seed"),
    ],
)
def test_impossible_requests_are_refused_at_submit(
    bad: Callable[[], Request], field: str, make_engine: MakeEngine
) -> None:
    engine = make_engine(num_blocks=16)
    engine.submit(request("busy"))
    with pytest.raises(InvalidRequest) as caught:
        engine.submit(bad())
    assert caught.value.field == field
    assert engine.num_waiting == 1
    engine.check_integrity()
