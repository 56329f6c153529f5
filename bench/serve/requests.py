"""The source of a load's requests: a workload, or questions in text."""

import argparse
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, islice, takewhile

from orcastream.bench.arrivals import gamma
from orcastream.bench.flags import draw_workload
from orcastream.bench.serve.load import Load
from orcastream.bench.serve.mix import Mix
from orcastream.bench.serve.questions import MIXES, QuestionMix, from_file
from orcastream.bench.workloads import WORKLOADS, Draw, SampleRequest, with_other_ids

_WARM_UP_TOKENS = 4


class RequestSource:
    """A source of the same requests for the same seed, load after load.

    Only a workload's token ids change consistently between runs, because a worker's prefix cache would know those of an
    earlier run. Lengths, arrivals, and common parts of prompts stay.
    """

    def __init__(self, options: argparse.Namespace, mix: Mix) -> None:
        self._options = options
        self._mix = mix
        self._fresh = random.SystemRandom()
        self._asks_text = bool(options.questions or options.prompts)
        self.name: str = str(options.prompts or options.questions or options.workload)

    def check(self) -> None:
        """Raise ValueError or UserError if the questions or the workload cannot be used."""
        if self._asks_text:
            self._question_mix()
        else:
            draw_workload(self._options, self._draw(self._number))

    def requests(self, load: Load) -> tuple[Iterable[SampleRequest], int | None]:
        """Return the requests of a load, and their number; None if the duration ends them."""
        plain, number = self._questions(load) if self._asks_text else self._workload(load)
        return self._mix.apply(self._unseen(plain), self._options.seed), number

    def warm_up(self, number: int) -> list[SampleRequest]:
        """Return a few short requests."""
        if self._asks_text:
            drawn = [self._question_mix().draw() for _ in range(number)]
        else:
            workload = draw_workload(self._options, self._draw(self._number))
            drawn = [request for request in workload if request.follows is None]
        mixed = self._mix.apply(self._unseen(drawn[:number]), self._options.seed)
        return [replace(request, max_tokens=_WARM_UP_TOKENS) for request in mixed]

    def _unseen(self, requests: Iterable[SampleRequest]) -> Iterator[SampleRequest]:
        """Yield the requests with unseen token ids."""
        return with_other_ids(requests, self._options.vocab_size, self._fresh)

    def _questions(self, load: Load) -> tuple[Iterable[SampleRequest], int | None]:
        questions: Iterator[SampleRequest] = iter(self._question_mix().draw, None)
        drawn = questions
        if load.rate is not None:
            rng = random.Random(f"arrivals {self._options.seed}")
            arrivals = gamma(load.rate, load.duration_s, self._options.burstiness, rng)
            drawn = (replace(next(questions), arrival_s=at) for at in arrivals)
        return islice(drawn, self._options.requests), self._options.requests

    def _question_mix(self) -> QuestionMix:
        options = self._options
        return from_file(options.prompts, options.seed) if options.prompts else MIXES[options.questions](options.seed)

    def _workload(self, load: Load) -> tuple[Iterable[SampleRequest], int | None]:
        """Return the whole workload; for a given duration, what arrives in it, or the workloads of successive seeds."""
        options = self._options
        ends_by_time = load.duration_s < math.inf and not options.requests
        if load.is_closed and ends_by_time:
            return self._endless(), None
        number = self._number
        drawn = draw_workload(options, self._draw(number, load.rate))
        while ends_by_time and load.rate is not None and _last_arrival_s(drawn) < load.duration_s:
            number *= 2
            drawn = draw_workload(options, self._draw(number, load.rate))
        if not load.is_closed:
            drawn = list(takewhile(lambda one: one.follows is not None or one.arrival_s < load.duration_s, drawn))
        return drawn, len(drawn)

    @property
    def _number(self) -> int:
        return self._options.requests or WORKLOADS[self._options.workload].requests

    def _endless(self) -> Iterator[SampleRequest]:
        return chain.from_iterable(self._shifted(turn) for turn in count())

    def _shifted(self, turn: int) -> Iterator[SampleRequest]:
        """Yield the workload of another seed, with indices after those of the earlier ones."""
        drawn = draw_workload(self._options, self._draw(self._number).again(self._options.seed + turn))
        for request in drawn:
            yield request if request.follows is None else replace(request, follows=request.follows + turn * len(drawn))

    def _draw(self, number: int, rate: float | None = None) -> Draw:
        options = self._options
        return Draw(
            vocab_size=options.vocab_size,
            seed=options.seed,
            requests=number,
            rate=rate,
            burstiness=options.burstiness,
            length_scale=options.length_scale,
        )


def _last_arrival_s(requests: Sequence[SampleRequest]) -> float:
    return max(request.arrival_s for request in requests if request.follows is None)
