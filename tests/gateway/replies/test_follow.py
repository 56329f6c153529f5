"""Silence in a reply: keep-alives, and the end of waiting after the deadline."""

import asyncio
import time
from collections.abc import Sequence

import pytest
import uvloop

from orcastream.broker.subscription import ReplyState, Subscription, Update
from orcastream.gateway.errors import ApiError
from orcastream.gateway.replies.follow import Following
from tests.patience import PATIENCE_S

UPDATE = Update((0,), (0,), 1)


@pytest.fixture
def state() -> ReplyState:
    return ReplyState("r1")


def subscribed(state: ReplyState, unread: Sequence[Update] = ()) -> Subscription:
    """Subscribe to a reply whose log has `unread` entries."""

    async def lags() -> bool:
        return bool(unread)

    subscription = Subscription(state, "default", on_close=lambda: None, on_room=lambda: None, lags=lags)
    subscription._admitted = True
    return subscription


@pytest.fixture
async def subscription(state: ReplyState) -> Subscription:
    return subscribed(state)


def followed(subscription: Subscription, *, for_s: float) -> Following:
    """Follow until `for_s` from now."""
    give_up_at = asyncio.get_running_loop().time() + for_s
    return Following(subscription, asyncio.Event(), keep_alive_s=0.01, give_up_at=give_up_at)


async def rest_of(following: Following) -> None:
    """Follow, without an end."""
    while True:
        await following.take()


async def test_waiting_ends_after_the_deadline(subscription: Subscription) -> None:
    async with followed(subscription, for_s=0.05) as following:
        with pytest.raises(ApiError) as caught:
            await rest_of(following)
    assert (caught.value.status, caught.value.code) == (504, "expired")


async def test_what_the_log_has_is_waited_for_beyond_the_deadline(state: ReplyState) -> None:
    """A gateway with very many replies to read may need longer than the silence of one allows."""
    unread = [UPDATE]
    async with followed(subscribed(state, unread), for_s=0) as following:
        for _ in range(3):
            assert await following.take() == []
        state.publish(unread.pop(), 1)
        assert await following.take() == [UPDATE]
        with pytest.raises(ApiError):
            await rest_of(following)


async def test_a_stopped_process_reads_what_came_meanwhile(
    state: ReplyState, subscription: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers are due before anything is read, although the reply may have ended in time."""
    loop = asyncio.get_running_loop()
    async with followed(subscription, for_s=60) as following:
        taking = asyncio.create_task(following.take())
        await asyncio.sleep(0)
        monkeypatch.setattr(loop, "time", lambda: time.monotonic() + 3600)  # SIGSTOP, an hour, SIGCONT
        assert await taking == []
        assert await following.take() == []
        state.publish(UPDATE, 1)
        assert await following.take() == [UPDATE]


async def test_a_client_that_read_for_long_beyond_the_deadline_gets_what_is_to_be_read_then(
    state: ReplyState, subscription: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading its log goes on only once it asks for more."""
    loop, later_s = asyncio.get_running_loop(), 0.0
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + later_s)
    give_up_at = loop.time() + 60
    async with Following(subscription, asyncio.Event(), keep_alive_s=15, give_up_at=give_up_at) as following:
        later_s = 3600
        taking = asyncio.create_task(following.take())
        await asyncio.sleep(0)
        following._watch()
        state.publish(UPDATE, 1)
        assert await taking == [UPDATE]


def test_silence_is_noticed_however_little_is_left_of_it(state: ReplyState) -> None:
    """uvloop, which gateways use, makes no timers for less than half a millisecond."""

    async def follow() -> None:
        following = Following(subscribed(state), asyncio.Event(), keep_alive_s=0.0001, give_up_at=float("inf"))
        async with asyncio.timeout(PATIENCE_S), following:
            assert [await following.take() for _ in range(3)] == [[]] * 3

    uvloop.run(follow())
