"""Mostly short and a few very long answers, as in chat services."""

import math

from orcastream.bench.workloads.draw import Draw
from orcastream.bench.workloads.registry import workload
from orcastream.bench.workloads.sample import SampleRequest

_MEAN, _SIGMA = 100, 1.0
_LEAST, _MOST = 8, 1024


@workload(requests=64)
def heavy_tail(draw: Draw) -> list[SampleRequest]:
    """Outputs log-normal (mean 100, sigma 1, from 8 to 1,024 tokens), prompts uniform from 32 to 128, all at once."""
    mu = math.log(_MEAN) - _SIGMA**2 / 2
    requests = []
    for at in draw.arrivals():
        output = min(_MOST, max(_LEAST, draw.rng.lognormvariate(mu, _SIGMA)))
        requests.append(SampleRequest(draw.ids(draw.between(32, 128)), max_tokens=draw.length(output), arrival_s=at))
    return requests
