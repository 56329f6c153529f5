"""Many requests with one system prompt, the use case of a prefix cache."""

from orcastream.bench.workloads.draw import Draw
from orcastream.bench.workloads.registry import workload
from orcastream.bench.workloads.sample import SampleRequest


@workload(requests=16)
def shared_prefix(draw: Draw) -> list[SampleRequest]:
    """A system prompt of 1,000 tokens, own parts of 20 to 60, outputs of 32; the others arrive after the first ended.

    The groups `first` and `later` have separate figures.
    """
    system = draw.ids(draw.length(1000))
    requests = []
    for index, at in enumerate(draw.arrivals()):
        requests.append(
            SampleRequest(
                (*system, *draw.ids(draw.between(20, 60))),
                max_tokens=draw.length(32),
                arrival_s=at if index else 0.0,
                group="later" if index else "first",
                follows=0 if index else None,
            )
        )
    return requests
