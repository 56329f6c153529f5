"""The requests of benchmarks: lengths, arrivals, tenants. Plain data drawn from a seed; no torch, no network."""

from orcastream.bench.workloads import (  # each registers itself
    equal_size,
    heavy_tail,
    long_prefill,
    multi_turn,
    orca_trace,
    shared_prefix,
    short_long_mix,
    two_tenants,
)
from orcastream.bench.workloads.draw import Draw
from orcastream.bench.workloads.registry import WORKLOADS, Workload, workload
from orcastream.bench.workloads.sample import SampleRequest, continued, token_ids, with_other_ids

__all__ = [
    "WORKLOADS",
    "Draw",
    "SampleRequest",
    "Workload",
    "continued",
    "equal_size",
    "heavy_tail",
    "long_prefill",
    "multi_turn",
    "orca_trace",
    "shared_prefix",
    "short_long_mix",
    "token_ids",
    "two_tenants",
    "with_other_ids",
    "workload",
]
