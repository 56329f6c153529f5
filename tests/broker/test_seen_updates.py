"""Updates with log probabilities, which stay after their reader has seen them."""

import pytest

from orcastream.broker import subscription
from orcastream.broker.subscription import ReplyState, Subscription, Update
from orcastream.schemas.events import Run

NUM_TOKENS = 500


async def test_each_step_of_a_reader_costs_the_same_however_much_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, has_logprobs = 0, subscription._has_logprobs

    def look(update: Update) -> bool:
        nonlocal looks
        looks += 1
        return has_logprobs(update)

    monkeypatch.setattr(subscription, "_has_logprobs", look)
    state = ReplyState("id")
    reader = Subscription(state, "tenant", lambda _: None)
    reader._admitted = True
    state.subscriptions.add(reader)
    for position in range(NUM_TOKENS):
        state.publish(Update((position + 1,), (0,), 1, (Run(0, position, (7,), ([-0.5, []],)),)))
        assert len(await reader.take(1)) == 1
    assert len(state.updates) == NUM_TOKENS
    assert looks <= 2 * NUM_TOKENS
