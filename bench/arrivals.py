"""Arrival times of requests: Poisson and bursty processes of constant rate, Poisson processes of varying rate."""

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Self


def poisson(rate: float, duration_s: float, rng: random.Random) -> Iterator[float]:
    """Yield arrival times in seconds, `rate` per second on average, from 0 to `duration_s`, which may be infinite."""
    return gamma(rate, duration_s, 1.0, rng)


def gamma(rate: float, duration_s: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Yield arrival times with gamma-distributed intervals of the shape `burstiness`.

    1 is the Poisson process; below 1 requests arrive in bursts (coefficient of variation 1 / sqrt(burstiness)), above 1
    more evenly.
    """
    for name, value, unit in (("rate", rate, " [requests/s]"), ("burstiness", burstiness, "")):
        if not value > 0:
            raise ValueError(f"{name}: got {value}, allowed: more than 0{unit}")
    now = 0.0
    while (now := now + rng.gammavariate(burstiness, 1 / (rate * burstiness))) < duration_s:
        yield now


@dataclass(frozen=True)
class RateProfile:
    """A rate interpolated linearly between `points` of (seconds, requests per second)."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        ascending = all(before < after for (before, _), (after, _) in pairwise(self.points))
        rates = [rate for _, rate in self.points]
        finite = all(math.isfinite(number) for point in self.points for number in point)
        fits = len(self.points) > 1 and finite and self.points[0][0] == 0 and ascending
        if not fits or min(rates) < 0 or max(rates) == 0:
            raise ValueError(
                f"profile: got {self}, allowed: two or more points SECONDS:RATE, the first at 0, "
                "seconds ascending, rates of at least 0 and not all 0, all numbers finite"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a profile such as `0:1,20:6,60:0`. Raises ValueError if it is invalid."""
        try:
            pairs = [part.split(":") for part in text.split(",")]
            return cls(tuple((float(at), float(rate)) for at, rate in pairs))
        except ValueError as error:
            raise ValueError(f"profile: got {text!r}, allowed: SECONDS:RATE,SECONDS:RATE,... ({error})") from None

    def __str__(self) -> str:
        return ",".join(f"{at:g}:{rate:g}" for at, rate in self.points)

    @property
    def duration_s(self) -> float:
        """The time of the last point."""
        return self.points[-1][0]

    def rate_at(self, seconds: float) -> float:
        """Return the requests per second at a time; 0 outside the profile."""
        if not 0 <= seconds < self.duration_s:
            return 0.0
        index = bisect_right(self.points, seconds, key=lambda point: point[0])
        (begin, low), (end, high) = self.points[index - 1], self.points[index]
        return low + (high - low) * (seconds - begin) / (end - begin)

    def arrivals(self, rng: random.Random) -> Iterator[float]:
        """Yield arrivals of a Poisson process of this rate: one of the maximum rate, thinned (Lewis, Shedler 1979)."""
        highest = max(rate for _, rate in self.points)
        for at in poisson(highest, self.duration_s, rng):
            if rng.random() * highest < self.rate_at(at):
                yield at
