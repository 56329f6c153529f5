"""Measures a worker's throughput while requests wait for it, from which the wait of a new request is estimated."""

import math
from collections.abc import Iterable

from orcastream.broker.throughput import Throughput
from orcastream.schemas.events import Usage
from orcastream.schemas.request import Payload
from orcastream.worker.running import Running

LOOK_S = 0.1
"""Pause between two readings of the engine's counts."""
_SETTLED_S = 0.5
"""Requests must have waited this long before computed tokens count: until then the batch is being filled."""
_WINDOW_S = 5.0
"""The weight of older measurements decays over this time."""
_REMEMBERED = 50
"""About this many of the last ended requests determine the ratio of computed to declared tokens."""


class ThroughputMeter:
    """Reads the engine's counts while the worker is saturated: requests wait, or every slot is taken.

    At other times the engine computes only what is there, which does not show its capacity. Counts are computed
    tokens; requests declare other numbers, since answers end before their maximum length. Ended requests give the
    ratio of the two, which is 1 until the first one has ended.
    """

    def __init__(self, class_weight: float) -> None:
        self._class_weight = class_weight
        self._last: tuple[float, int, int] | None = None
        self._saturated_since_s: float | None = None
        self._measured_s = 0.0
        self._tokens_per_s = 0.0
        self._iterations_per_s = 0.0
        self._declared, self._computed = 0.0, 0.0
        self._declared_length, self._length = 0.0, 0.0

    def look(self, now_s: float, num_tokens: int, num_iterations: int, *, is_saturated: bool) -> None:
        """Take the engine's counts so far, at `now_s` of a monotonic clock.

        An iteration's time counts once it has ended, with its tokens; not at all if the worker is no longer saturated
        then.
        """
        last = self._last
        if is_saturated and last is not None and num_iterations == last[2]:
            return
        self._last = (now_s, num_tokens, num_iterations)
        if not is_saturated:
            self._saturated_since_s = None
            return
        if self._saturated_since_s is None:
            self._saturated_since_s = now_s
        if last is None or last[0] - self._saturated_since_s < _SETTLED_S or now_s <= last[0]:
            return
        took_s = now_s - last[0]
        self._measured_s += took_s
        # The mean of all measurements, and of the last seconds once there are more.
        weight = took_s / self._measured_s if self._measured_s < _WINDOW_S else 1 - math.exp(-took_s / _WINDOW_S)
        self._tokens_per_s += weight * ((num_tokens - last[1]) / took_s - self._tokens_per_s)
        self._iterations_per_s += weight * ((num_iterations - last[2]) / took_s - self._iterations_per_s)

    def ended(self, payload: Payload, usage: Usage) -> None:
        """Record a request that got its whole answer."""
        fading = 1 - 1 / _REMEMBERED
        computed = (
            usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens * payload.num_candidates / payload.n
        )
        self._declared = self._declared * fading + payload.declared_tokens
        self._computed = self._computed * fading + max(computed, 1)
        self._declared_length = self._declared_length * fading + payload.declared_length
        self._length = self._length * fading + usage.completion_tokens / payload.n

    def report(self, running: Iterable[Running]) -> Throughput | None:
        """Return the current report, including the running requests; None before anything was measured."""
        if self._tokens_per_s <= 0 or self._iterations_per_s <= 0:
            return None
        share = self._computed / self._declared if self._declared else 1.0
        length_share = self._length / self._declared_length if self._declared_length else 1.0
        return Throughput(
            tokens_per_s=self._tokens_per_s / share,
            token_ms=1000 * length_share / self._iterations_per_s,
            done=int(sum(_done(one, share) for one in running)),
            class_weight=self._class_weight,
        )


def _done(running: Running, share: float) -> float:
    """Return the declared tokens of a request that are already done."""
    payload, num_tokens = running.request.payload, sum(len(choice.tokens) for choice in running.choices)
    if not num_tokens:
        return 0.0
    return min((len(payload.prompt) + num_tokens) / share, payload.declared_tokens)
