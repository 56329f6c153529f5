"""Random prompts, lengths and arrivals, reproducible for a seed."""

import math
import random
from dataclasses import dataclass, field, replace
from itertools import islice

from orcastream.bench.arrivals import gamma


@dataclass(frozen=True)
class Draw:
    """The parameters by which a workload is drawn.

    `requests`, `rate` (per second) and `burstiness` None: the workload's own. `length_scale` multiplies all prompt and
    output lengths, `time_scale` all times between arrivals: with 0, all requests arrive as soon as possible.
    """

    vocab_size: int
    seed: int = 0
    requests: int = 16
    rate: float | None = None
    burstiness: float = 1.0
    length_scale: float = 1.0
    time_scale: float = 1.0
    rng: random.Random = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, least in (("vocab_size", 2), ("requests", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed: at least {least}")
        for name in ("rate", "burstiness", "length_scale"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}: got {value}, allowed: more than 0 and finite")
        if not 0 <= self.time_scale < math.inf:
            raise ValueError(f"time_scale: got {self.time_scale}, allowed: 0 or more and finite")
        object.__setattr__(self, "rng", random.Random(f"workload {self.seed}"))

    def again(self, seed: int) -> "Draw":
        """Return the same parameters with another seed."""
        return replace(self, seed=seed)

    def length(self, tokens: float) -> int:
        """Return a number of tokens, scaled; at least one."""
        return max(1, round(tokens * self.length_scale))

    def between(self, low: int, high: int) -> int:
        """Return a scaled length, uniform from `low` to `high` tokens."""
        return self.length(self.rng.randint(low, high))

    def ids(self, length: int) -> tuple[int, ...]:
        """Return that many random token ids."""
        return tuple(self.rng.choices(range(self.vocab_size), k=length))

    def arrivals(self, default_rate: float | None = None) -> list[float]:
        """Return each request's arrival in seconds, at the requested rate, else at the default; None: all at 0."""
        rate = self.rate or default_rate
        if rate is None or self.time_scale == 0:
            return [0.0] * self.requests
        process = gamma(rate, math.inf, self.burstiness, self.rng)
        return [self.pause(at) for at in islice(process, self.requests)]

    def pause(self, seconds: float) -> float:
        """Return a number of seconds, scaled."""
        return seconds * self.time_scale
