"""What a benchmark asks for: lengths, arrivals, tenants. Plain data drawn from a seed; no torch, no network."""

from bench.workloads import (  # each registers itself
    equal_size,
    heavy_tail,
    long_prefill,
    multi_turn,
    orca_trace,
    shared_prefix,
    short_long_mix,
    two_tenants,
)
from bench.workloads.draw import Draw
from bench.workloads.registry import WORKLOADS, Workload, workload
from bench.workloads.sample import SampleRequest, continued, token_ids

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
    "workload",
]
