"""Waiting for events in real Redis servers: a failover, slots known to all nodes."""

import time
from collections.abc import Callable

import redis

from tests.patience import PATIENCE_S


def wait_until(holds: Callable[[], bool]) -> None:
    """Poll until the condition holds; an unanswered poll counts as false. Raises AssertionError after `PATIENCE_S`."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            if holds():
                return
        except redis.RedisError:
            pass
        assert time.monotonic() < give_up, "the condition was never met"
        time.sleep(0.05)


def text(value: object) -> str:
    """Return an answer as text, whether the client returns bytes or text."""
    return value.decode() if isinstance(value, bytes) else str(value)
