"""Conversations: each prompt contains all previous turns."""

from orcastream.bench.workloads.draw import Draw
from orcastream.bench.workloads.registry import workload
from orcastream.bench.workloads.sample import SampleRequest

_TURNS = 4
_THINK_S = (0.5, 2.0)


@workload(requests=32)
def multi_turn(draw: Draw) -> list[SampleRequest]:
    """Conversations of 4 turns (1/s): all previous turns and 20 to 100 user tokens; answers of 32 to 96 tokens."""
    requests: list[SampleRequest] = []
    for index, at in enumerate(draw.arrivals(default_rate=float(_TURNS))):
        turn = index % _TURNS
        requests.append(
            SampleRequest(
                draw.ids(draw.between(20, 100)),
                max_tokens=draw.between(32, 96),
                arrival_s=draw.pause(draw.rng.uniform(*_THINK_S)) if turn else at,
                group=f"turn {turn + 1}",
                follows=index - 1 if turn else None,
                continues=turn > 0,
            )
        )
    return requests
