"""The engine's iterations under one load."""

from orcastream.bench.floor.parts import Load
from orcastream.engine import OrcaEngine, Request
from orcastream.schemas.sampling import SamplingParams


class Iterations:
    """Measurement of the engine's iterations under one load."""

    def __init__(self, engine: OrcaEngine, load: Load, repeats: int) -> None:
        self._engine = engine
        self._load = load
        self._repeats = repeats
        self.total: list[float] = []
        self.host: list[float] = []

    def run(self) -> None:
        """Measure the iterations; the engine is empty afterwards."""
        rounds = 1 if self._load.length == 1 else self._repeats
        for number in range(rounds + (self._load.length > 1)):
            self._submit()
            while self._engine.has_work:
                self._engine.step()
                if number or self._load.length == 1:
                    self._note()

    def _submit(self) -> None:
        load = self._load
        known = load.context if load.length == 1 else load.length
        outputs = self._repeats + 1 if load.length == 1 else 1
        for index in range(load.batch):
            prompt = tuple(5 + (index * 7919 + position * 31) % 400 for position in range(known))
            sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=outputs)
            self._engine.submit(Request(f"{load}-{index}", prompt, sampling))

    def _note(self) -> None:
        record = self._engine.last_iteration
        if record is None or record.num_tokens != self._load.batch * self._load.length:
            return
        if self._load.length == 1 and record.prefill_tokens:
            return
        self.total.append(record.total_s * 1e3)
        self.host.append((record.total_s - record.forward_s) * 1e3)
