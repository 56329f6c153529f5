"""A tenant with ten times the load of another: in order of arrival, the one crowds out the other."""

from orcastream.bench.workloads.draw import Draw
from orcastream.bench.workloads.registry import workload
from orcastream.bench.workloads.sample import SampleRequest

_HEAVY_TO_LIGHT = 10


@workload(requests=88)
def two_tenants(draw: Draw) -> list[SampleRequest]:
    """Tenants `heavy` and `light`, ten requests to one; prompts of 32 to 128 tokens, outputs of 16 to 64 (4/s)."""
    return [
        SampleRequest(
            draw.ids(draw.between(32, 128)),
            max_tokens=draw.between(16, 64),
            arrival_s=at,
            tenant="light" if index % (_HEAVY_TO_LIGHT + 1) == _HEAVY_TO_LIGHT // 2 else "heavy",
        )
        for index, at in enumerate(draw.arrivals(default_rate=4.0))
    ]
