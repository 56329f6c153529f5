"""Long prompts arrive while others decode: who computes a prompt in one piece stalls everybody's next token."""

from orcastream.bench.workloads.draw import Draw
from orcastream.bench.workloads.registry import workload
from orcastream.bench.workloads.sample import SampleRequest

_DECODES = 8
_FIRST_S, _BETWEEN_S = 2.0, 0.5


@workload(requests=12)
def long_prefill(draw: Draw) -> list[SampleRequest]:
    """8 requests decode 400 tokens; meanwhile prompts of 2,000 to 8,000 tokens come one after another, 16 tokens out.

    The figures of the groups `decode` and `prefill` tell the two apart.
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
