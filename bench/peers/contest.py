"""Systems alternating on the same requests: all loaded with one dtype, repeat by repeat, then with the next dtype."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from orcastream.bench.figures.progress import RunBars
from orcastream.bench.peers.entrant import Entrant, Place
from orcastream.bench.peers.runner_process import RunnerError
from orcastream.bench.peers.runners.protocol import Ask, Load
from orcastream.bench.peers.systems import System

_WARM_UP_TOKENS = 4


@dataclass
class Row:
    """A system on a workload with a dtype, and the figures of each run."""

    system: str
    version: str
    workload: str
    dtype: str
    runs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Absence:
    """A system that did not take part, or dropped out, and the reason."""

    system: str
    dtype: str
    why: str


class Contest:
    """A comparison; `rows` and `absent` grow while it runs. `load` is common to all systems except for the dtype."""

    def __init__(self, systems: Sequence[System], load: Load, place: Place, workloads: dict[str, list[Ask]]) -> None:
        self._systems = systems
        self._load = load
        self._place = place
        self._workloads = workloads
        self.rows: list[Row] = []
        self.absent: list[Absence] = []

    def run(self, dtypes: Sequence[str], repeats: int, seed: int, vocab_size: int) -> bool:
        """Run all repeats of all systems alternately; return False if an interrupt ended the run early."""
        total = repeats * len(dtypes) * len(self._systems) * len(self._workloads)
        with RunBars(total) as bars, suppress(KeyboardInterrupt):
            for dtype in dtypes:
                with self._entrants(dtype) as entrants:
                    for workload, asks in self._workloads.items():
                        rounds = fresh_rounds(asks, 1 + repeats, seed, vocab_size)
                        self._rounds(entrants, dtype, workload, rounds, bars)
            return True
        return False

    def _rounds(
        self, entrants: list[Entrant], dtype: str, workload: str, rounds: Iterator[list[Ask]], bars: RunBars
    ) -> None:
        """Run the rounds; the first is a short uncounted one, all at once, to warm up shapes and caches."""
        warm_up = [Ask(ask.prompt, min(ask.max_tokens, _WARM_UP_TOKENS)) for ask in next(rounds)]
        for entrant in list(entrants):
            self._turn(entrants, entrant, dtype, warm_up)
        rows = {entrant.name: Row(entrant.name, entrant.version, workload, dtype) for entrant in entrants}
        self.rows += rows.values()
        for asks in rounds:
            for entrant in list(entrants):
                bars.begin(f"{workload} {dtype} {entrant.name}", len(asks))
                if figures := self._turn(entrants, entrant, dtype, asks):
                    rows[entrant.name].runs.append(figures)
                bars.end()

    def _turn(self, entrants: list[Entrant], entrant: Entrant, dtype: str, asks: list[Ask]) -> dict[str, Any] | None:
        """Return the figures of one run; None if it fails, and then the system drops out."""
        try:
            return entrant.run(asks)
        except RunnerError as error:
            self.absent.append(Absence(entrant.name, dtype, str(error)))
            entrants.remove(entrant)
            entrant.close()
            return None

    @contextmanager
    def _entrants(self, dtype: str) -> Iterator[list[Entrant]]:
        """Yield the systems that can take part, loaded one after another."""
        entrants: list[Entrant] = []
        load = replace(self._load, dtype=dtype)
        try:
            for system in self._systems:
                why = self._place.lack(system, load)
                if why is None:
                    try:
                        entrants.append(Entrant(system, load, self._place))
                    except RunnerError as error:
                        why = str(error)
                if why is not None:
                    self.absent.append(Absence(system.name, dtype, why))
            yield entrants
        finally:
            for entrant in entrants:
                entrant.close()


def fresh_rounds(asks: Sequence[Ask], number: int, seed: int, vocab_size: int) -> Iterator[list[Ask]]:
    """Yield the requests with new token ids for each round: a prefix cache would know those of the previous round.

    The same seed gives the same ids. Lengths, arrivals, and common parts of prompts stay.
    """
    rng = random.Random(f"peers {seed}")
    for _ in range(number):
        others = rng.sample(range(vocab_size), vocab_size)
        yield [replace(ask, prompt=[others[token] for token in ask.prompt]) for ask in asks]
