"""Each workload generates what its name promises, reproducibly with the same seed."""

import math
import statistics

import pytest

from orcastream.bench.workloads import WORKLOADS, Draw, SampleRequest, continued, token_ids

NAMES = {
    "equal_size",
    "short_long_mix",
    "orca_trace",
    "heavy_tail",
    "shared_prefix",
    "multi_turn",
    "long_prefill",
    "two_tenants",
}


def build(name: str, **settings: float) -> list[SampleRequest]:
    settings.setdefault("requests", WORKLOADS[name].requests)
    return WORKLOADS[name].build(Draw(vocab_size=1000, **settings))  # type: ignore[arg-type]


def sizes(requests: list[SampleRequest]) -> list[tuple[int, int | None]]:
    return [(len(token_ids(request)), request.max_tokens) for request in requests]


def test_all_workloads_exist_and_are_described() -> None:
    assert set(WORKLOADS) == NAMES
    assert all(len(workload.description) > 20 for workload in WORKLOADS.values())


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_seed_decides_everything(name: str) -> None:
    first = build(name, seed=3)
    assert first == build(name, seed=3)
    assert first != build(name, seed=4)
    assert len(build(name, requests=5)) == 5
    for index, request in enumerate(first):
        assert request.max_tokens is not None
        assert request.max_tokens >= 1
        assert all(0 <= token < 1000 for token in token_ids(request))
        assert request.follows is None or 0 <= request.follows < index


@pytest.mark.parametrize("name", sorted(NAMES))
def test_lengths_and_times_scale(name: str) -> None:
    longest = max(size[0] for size in sizes(build(name)))
    assert max(size[0] for size in sizes(build(name, length_scale=0.1))) <= 0.1 * longest + 1
    assert all(request.arrival_s == 0 for request in build(name, time_scale=0.0))


def test_equal_size() -> None:
    assert sizes(build("equal_size")) == [(128, 128)] * 16


def test_short_long_mix() -> None:
    assert sizes(build("short_long_mix")) == [(32, 32), (512, 128)] * 8


def test_orca_trace() -> None:
    requests = build("orca_trace", requests=2000)
    prompts, outputs = zip(*sizes(requests), strict=True)
    assert (min(prompts), max(prompts)) == (32, 512)
    assert (min(outputs), max(outputs)) == (1, 128)
    assert requests[-1].arrival_s == pytest.approx(2000, rel=0.1), "one per second"
    assert build("orca_trace", requests=2000, rate=4.0)[-1].arrival_s == pytest.approx(500, rel=0.1)


def test_heavy_tail() -> None:
    outputs = [size[1] or 0 for size in sizes(build("heavy_tail", requests=4000))]
    assert statistics.mean(outputs) == pytest.approx(100, rel=0.08)
    assert statistics.stdev(map(math.log, outputs)) == pytest.approx(1.0, rel=0.08)
    assert min(outputs) == 8
    assert max(outputs) <= 1024


def test_shared_prefix() -> None:
    first, *later = build("shared_prefix")
    shared = token_ids(first)[:1000]
    assert len(later) == 15
    for request in later:
        assert token_ids(request)[:1000] == shared
        assert 20 <= len(token_ids(request)) - 1000 <= 60
        assert request.follows == 0
    assert len({token_ids(request)[1000:] for request in later}) == 15


def test_multi_turn() -> None:
    requests = build("multi_turn")
    turns = [requests[start : start + 4] for start in range(0, len(requests), 4)]
    for index, (first, *others) in enumerate(turns):
        assert first.follows is None
        assert [request.follows for request in others] == [4 * index, 4 * index + 1, 4 * index + 2]
        assert all(request.continues for request in others)
    answered = continued(SampleRequest((5, 6), follows=0, continues=True), (1, 2), (3, 4))
    assert answered.prompt == (1, 2, 3, 4, 5, 6)


def test_long_prefill() -> None:
    requests = build("long_prefill", requests=30)
    assert [request.group for request in requests] == ["decode"] * 8 + ["prefill"] * 22
    prompts = [size[0] for size in sizes(requests[8:])]
    assert 2000 <= min(prompts) < 4000 < 6000 < max(prompts) <= 8000
    assert [request.follows for request in requests[8:]] == [None, *range(8, 29)], "one after another"


def test_two_tenants() -> None:
    tenants = [request.tenant for request in build("two_tenants")]
    assert tenants.count("heavy") == 10 * tenants.count("light") == 80


@pytest.mark.parametrize(
    ("setting", "value"), [("requests", 0), ("rate", 0.0), ("burstiness", math.inf), ("time_scale", -1.0)]
)
def test_an_impossible_workload_is_named(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{setting}: got {value}"):
        build("equal_size", **{setting: value})
