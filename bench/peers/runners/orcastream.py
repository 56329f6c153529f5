"""This project's engine, in a process like the other systems."""

from collections.abc import Iterable

from orcastream.engine import EngineConfig, OrcaEngine, Request
from orcastream.engine.operators import Operators
from orcastream.schemas.sampling import SamplingParams
from orcastream.telemetry.version import own_version

from .kv_bytes import kv_bytes_per_token
from .protocol import Ask, Load, Piece


def load(load: Load) -> "Orcastream":
    """Load the engine with its own settings except for the shared ones. Raises ValueError if one is unsupported."""
    import torch

    torch.set_num_threads(load.threads)
    return Orcastream(load)


class Orcastream:
    """One engine."""

    def __init__(self, load: Load) -> None:
        int8 = load.dtype == "int8"
        config = EngineConfig(
            model=load.model,
            dtype="bfloat16" if int8 else load.dtype,  # type: ignore[arg-type]  # checked there
            weight_dtype="int8" if int8 else "auto",
            device=load.device,  # type: ignore[arg-type]
            max_batch_size=load.max_batch_size,
            max_num_batched_tokens=load.max_num_batched_tokens,
            kv_cache_memory=load.kv_tokens * kv_bytes_per_token(load.model, load.dtype),
        )
        self._engine = OrcaEngine.load(config)
        self._engine.settle()
        self.version = f"{own_version()}, {_served_by(self._engine.operators)}"
        self._runs = 0
        self._running: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """Whether the engine has work."""
        return self._engine.has_work

    def submit(self, index: int, ask: Ask) -> None:
        """Submit a greedy request."""
        self._runs += 1
        name = f"bench-{self._runs}"
        self._running[name] = index
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=ask.max_tokens)
        self._engine.submit(Request(name, tuple(ask.prompt), params))

    def step(self) -> Iterable[Piece]:
        """Run one iteration. Raises RuntimeError if a request fails."""
        pieces = []
        for event in self._engine.step():
            index = self._running[event.request_id]
            if event.error is not None:
                raise RuntimeError(f"request {index}: {event.error}")
            if event.token is not None:
                pieces.append(Piece(index, [event.token]))
            if event.finish_reason is not None:
                del self._running[event.request_id]
        return pieces


def _served_by(operators: Operators) -> str:
    """Return the operators in use: without compiled ones, the figures would be mistaken for this engine's."""
    if operators.device != "cpu":
        return operators.attention_backend
    return "no compiled operators" if operators.compiled.startswith("none") else operators.compiled
