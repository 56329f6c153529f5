"""Waiting for what real Redis servers come to by themselves: a failover, slots that all nodes know."""

import time
from collections.abc import Callable

import redis

from tests.patience import PATIENCE_S


def wait_until(holds: Callable[[], bool]) -> None:
    """Ask until it holds; a server that does not answer says no. AssertionError after `PATIENCE_S`."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            if holds():
                return
        except redis.RedisError:
            pass
        assert time.monotonic() < give_up, "it did not come to that"
        time.sleep(0.05)


def text(value: object) -> str:
    """What an answer says, in bytes or not as the client that asked has it."""
    return value.decode() if isinstance(value, bytes) else str(value)
