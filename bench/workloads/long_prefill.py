"""Long prompts that arrive while others decode: a prompt computed in one piece delays the next token of all others."""

from orcastream.bench.workloads.draw import Draw
from orcastream.bench.workloads.registry import workload
from orcastream.bench.workloads.sample import SampleRequest

_DECODES = 8
_FIRST_S, _BETWEEN_S = 2.0, 0.5


@workload(requests=12)
def long_prefill(draw: Draw) -> list[SampleRequest]:
    """8 requests decode 400 tokens; meanwhile prompts of 2,000 to 8,000 tokens arrive one by one, 16 tokens out.

    The groups `decode` and `prefill` have separate figures.
    """
    requests = [
        SampleRequest(draw.ids(draw.length(64)), max_tokens=draw.length(400), group="decode")
        for _ in range(min(_DECODES, draw.requests))
    ]
    for index in range(len(requests), draw.requests):
        is_first = index == _DECODES
        requests.append(
            SampleRequest(
                draw.ids(draw.between(2000, 8000)),
                max_tokens=draw.length(16),
                arrival_s=draw.pause(_FIRST_S if is_first else _BETWEEN_S),
                group="prefill",
                follows=None if is_first else index - 1,
            )
        )
    return requests
