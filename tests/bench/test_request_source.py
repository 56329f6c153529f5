"""The requests of a load: as many as requested or as fit its duration, and none that a prefix cache has seen."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from orcastream.bench.serve.command import parse
from orcastream.bench.serve.load import Load, read_loads
from orcastream.bench.serve.mix import Mix, read_keys, read_shares
from orcastream.bench.serve.requests import RequestSource
from orcastream.bench.workloads import SampleRequest, token_ids
from orcastream.cli.errors import UserError


def source(*flags: str, mix: Mix | None = None) -> tuple[RequestSource, list[Load]]:
    options = parse(flags)
    return RequestSource(options, mix or Mix({}, {})), read_loads(options)


def drawn(source: RequestSource, load: Load, most: int = 1000) -> list[SampleRequest]:
    return list(islice(source.requests(load)[0], most))


def shape(requests: Sequence[SampleRequest]) -> list[tuple[Any, ...]]:
    return [(len(token_ids(one)), one.max_tokens, one.arrival_s, one.follows) for one in requests]


def test_every_run_has_the_same_shape_and_other_tokens() -> None:
    made, [load] = source("--workload", "shared_prefix", "--requests", "4")
    first, second = drawn(made, load), drawn(made, load)
    assert shape(first) == shape(second)
    assert all(token_ids(one) != token_ids(other) for one, other in zip(first, second, strict=True))
    for run in (first, second):
        assert len({token_ids(request)[:1000] for request in run}) == 1, "shared prefixes stay shared"


def test_a_rate_for_a_time_gives_the_arrivals_of_that_time() -> None:
    made, [load] = source("--workload", "orca_trace", "--rate", "50", "--duration", "4")
    arrivals = [request.arrival_s for request in drawn(made, load)]
    assert 150 < len(arrivals) < 250
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] < 4


def test_requests_and_a_time_end_at_the_first_limit() -> None:
    flags = ("--rate", "5", "--duration", "2", "--requests")
    made, [load] = source(*flags, "100")
    assert 0 < len(few := drawn(made, load)) < 30
    assert few[-1].arrival_s < 2
    made, [load] = source(*flags, "3")
    assert len(drawn(made, load)) == 3


def test_one_tenant_of_several_arrives_for_the_whole_time() -> None:
    made, [load] = source("--workload", "two_tenants", "--only-tenant", "light", "--rate", "20", "--duration", "20")
    arrivals = [request.arrival_s for request in drawn(made, load)]
    assert 20 < len(arrivals) < 60
    assert arrivals[-1] > 15


def test_bursts_do_not_end_before_their_time() -> None:
    for seed in range(10):
        flags = ("--workload", "equal_size", "--length-scale", "0.01", "--seed", str(seed))
        made, [load] = source(*flags, "--rate", "5", "--burstiness", "0.02", "--duration", "30")
        longer = replace(load, duration_s=60.0)
        times = [request.arrival_s for request in drawn(made, load)]
        assert times == [at for request in drawn(made, longer) if (at := request.arrival_s) < 30]


def test_clients_for_a_time_never_run_out_of_requests() -> None:
    made, [load] = source("--workload", "multi_turn", "--requests", "8", "--concurrency", "2")
    assert len(drawn(made, load)) == 8
    made, [load] = source("--workload", "multi_turn", "--concurrency", "2", "--duration", "5")
    requests = drawn(made, load, most=70)
    assert len(requests) == 70
    assert all(request.follows is None or request.follows == index - 1 for index, request in enumerate(requests))
    assert requests[0].prompt != requests[32].prompt


def test_classes_and_tenants_are_drawn_by_share() -> None:
    made, [load] = source("--requests", "600", mix=Mix({"realtime": 1, "low": 3}, {"light": 1}))
    requests = drawn(made, load)
    assert sum(request.priority_class == "low" for request in requests) == pytest.approx(450, abs=50)
    assert {request.tenant for request in requests} == {"light"}


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        (("--questions", "demo", "--prompts", "f"), "--questions: got --prompts as well"),
        (("--questions", "demo", "--workload", "orca_trace"), "--workload: got questions in text"),
        (("--prompts=f", "--length-scale=2"), "--length-scale: got questions in text"),
        (("--require-exact",), "--require-exact: got a workload"),
        (("--latency-limit-ms", "5", "--rate", "1"), "--latency-limit-ms: got 5, allowed: with --sweep"),
        (("--sweep", "rate=1,2,1"), "--sweep: got '1,2,1', allowed: each number once"),
    ],
)
def test_flags_without_effect_are_refused(flags: Sequence[str], refused: str) -> None:
    with pytest.raises(UserError, match=refused):
        source(*flags)


def test_names_occur_once_in_a_mix_and_among_keys() -> None:
    with pytest.raises(UserError, match="--mix: got 'low' twice"):
        read_shares("--mix", "low=1,high=1,low=2")
    with pytest.raises(UserError, match="--tenant-key: got 'a' twice"):
        read_keys(["a=1", "a=2"])


def test_questions_run_for_a_minute_by_default() -> None:
    _, [load] = source("--questions", "demo")
    assert (load.concurrency, load.is_closed, load.duration_s) == (8, True, 60.0)
    made, [load] = source("--questions", "demo", "--rate", "5", "--requests", "7")
    assert (load.is_closed, load.duration_s) == (False, float("inf"))
    requests = drawn(made, load)
    assert len(requests) == 7
    assert all(isinstance(request.prompt, str) and request.answer for request in requests)
    assert 0 < requests[0].arrival_s < requests[6].arrival_s


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        (("--workload", "long_prefill", "--rate", "1"), "--rate: got 1 for long_prefill"),
        (("--workload", "long_prefill", "--sweep", "rate=1,2"), "--rate: got 1 for long_prefill"),
        (("--workload", "equal_size", "--burstiness", "0.5"), "--burstiness: got 0.5 for equal_size"),
        (("--concurrency", "2", "--burstiness", "0.5"), "--burstiness: got 0.5"),
        (("--questions", "demo", "--burstiness", "0.5"), "--burstiness: got 0.5"),
    ],
)
def test_arrival_flags_without_effect_are_refused(flags: Sequence[str], refused: str) -> None:
    with pytest.raises(UserError, match=refused):
        source(*flags)


@pytest.mark.parametrize(
    "flags", [("--burstiness", "0.5"), ("--workload", "equal_size", "--rate", "2", "--burstiness", "0.5")]
)
def test_bursts_follow_a_rate(flags: Sequence[str]) -> None:
    made, [load] = source(*flags)
    assert len({request.arrival_s for request in drawn(made, load)}) > 1


def test_the_warm_up_is_short_and_has_no_follow_ups() -> None:
    made, _ = source("--workload", "multi_turn")
    requests = made.warm_up(3)
    assert [(request.max_tokens, request.follows) for request in requests] == [(4, None)] * 3
    assert made.warm_up(0) == []
