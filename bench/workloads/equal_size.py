"""Requests of one size, where iteration-level scheduling has no advantage."""

from orcastream.bench.workloads.draw import Draw
from orcastream.bench.workloads.registry import workload
from orcastream.bench.workloads.sample import SampleRequest


@workload(requests=16)
def equal_size(draw: Draw) -> list[SampleRequest]:
    """128 prompt and 128 output tokens each, all at once."""
    return [
        SampleRequest(draw.ids(draw.length(128)), max_tokens=draw.length(128), arrival_s=at) for at in draw.arrivals()
    ]
