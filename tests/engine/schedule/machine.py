"""A synthetic machine, whose iterations take a known time plus noise."""

from random import Random

from orcastream.engine.record import IterationRecord


class Machine:
    """Seconds per iteration: `base` + the cost of each token, times `speed`; log-normal noise, rarely a hiccup."""

    def __init__(self, seed: int = 0, noise: float = 0.05, hiccups: float = 0.0) -> None:
        self.random = Random(seed)
        self.noise = noise
        self.hiccups = hiccups
        self.speed = 1.0
        self.base, self.decode, self.prefill, self.context, self.pair = 4e-3, 2e-4, 1e-4, 2e-7, 2e-8

    def expected_s(self, decodes: int, prefill: int, context: int, pairs: int) -> float:
        parts = self.decode * decodes + self.prefill * prefill + self.context * context + self.pair * pairs
        return self.speed * (self.base + parts)

    def run(self, decodes: int, prefill: int, context: int, pairs: int = 0) -> IterationRecord:
        seconds = self.expected_s(decodes, prefill, context, pairs) * self.random.lognormvariate(0, self.noise)
        if self.random.random() < self.hiccups:
            seconds *= 50
        return IterationRecord(0.0, 0.0, 0.0, 0.0, 0.0, seconds, prefill, decodes, context, [], [], pairs)

    def any_iteration(self) -> IterationRecord:
        decodes = self.random.randrange(0, 32)
        prefill = self.random.choice([0, 0, 16, 64, 128, 256, 512])
        start = self.random.randrange(0, 4000)
        context = decodes * self.random.randrange(50, 500) + (start + prefill if prefill else 0)
        return self.run(decodes, prefill, context, prefill * (start + prefill))
