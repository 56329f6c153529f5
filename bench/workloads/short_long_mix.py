"""Alternating short and long requests: a batch that waits for its longest member wastes the slots of short ones."""

from orcastream.bench.workloads.draw import Draw
from orcastream.bench.workloads.registry import workload
from orcastream.bench.workloads.sample import SampleRequest

_SIZES = ((32, 32), (512, 128))


@workload(requests=16)
def short_long_mix(draw: Draw) -> list[SampleRequest]:
    """32 prompt and 32 output tokens alternate with 512 and 128, all at once."""
    requests = []
    for index, at in enumerate(draw.arrivals()):
        prompt, output = _SIZES[index % 2]
        group = "long" if index % 2 else "short"
        requests.append(
            SampleRequest(draw.ids(draw.length(prompt)), max_tokens=draw.length(output), arrival_s=at, group=group)
        )
    return requests
