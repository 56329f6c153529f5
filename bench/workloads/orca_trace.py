"""The synthetic trace of Orca's evaluation (OSDI'22, section 6.2)."""

from orcastream.bench.workloads.draw import Draw
from orcastream.bench.workloads.registry import workload
from orcastream.bench.workloads.sample import SampleRequest


@workload(requests=64)
def orca_trace(draw: Draw) -> list[SampleRequest]:
    """Prompts uniform from 32 to 512 tokens, outputs from 1 to 128, Poisson arrivals (1/s)."""
    return [
        SampleRequest(draw.ids(draw.between(32, 512)), max_tokens=draw.between(1, 128), arrival_s=at)
        for at in draw.arrivals(default_rate=1.0)
    ]
