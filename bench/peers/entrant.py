"""A system with one dtype, loaded in its process, which runs the same requests as all others."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from orcastream import IMPORTED_FROM
from orcastream.bench.figures.spread import in_ms
from orcastream.bench.peers.environment import Environment
from orcastream.bench.peers.runner_process import RunnerError, RunnerProcess
from orcastream.bench.peers.runners.kv_bytes import kv_bytes_per_token
from orcastream.bench.peers.runners.protocol import Ask, Load
from orcastream.bench.peers.systems import ENVIRONMENTS, OWN, System
from orcastream.telemetry.processors import usable_processors

_RUNNERS = Path(__file__).parent
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_PRELOAD", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Place:
    """Where systems run: the folder of their environments, device, threads, and the maximum wait for an answer."""

    environments: Path
    device: str
    threads: int
    timeout_s: float

    def environment(self, system: System) -> Environment | None:
        """Return the system's environment; None for this project's own. Raises KeyError if it does not run here."""
        name = system.environments[self.device]
        return None if name == OWN else Environment(self.environments / name, ENVIRONMENTS[name])

    def lack(self, system: System, load: Load) -> str | None:
        """Return why a system cannot take part; None if it can."""
        if self.device not in system.environments:
            return f"does not run on {self.device}"
        if load.dtype not in system.dtypes:
            return f"has no {load.dtype}"
        if load.max_num_batched_tokens is not None and not system.has_iterations:
            return "computes prompts whole, without a limit of tokens"
        environment = self.environment(system)
        return None if environment is None else environment.lack()


class Entrant:
    """One system, loaded and stopped until its turn. Raises RunnerError if it cannot be loaded."""

    def __init__(self, system: System, load: Load, place: Place) -> None:
        self.name = system.name
        self._timeout_s = place.timeout_s
        self._process = RunnerProcess(_command(system, place), _variables(system, load, place))
        try:
            checkpoint = self._checkpoint(system, load, place)
            self.version: str = self.ask(do="load", **{**asdict(load), "model": str(checkpoint)})["version"]
        except BaseException:
            self._process.close()
            raise
        self._process.pause()

    def __enter__(self) -> "Entrant":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def run(self, asks: Sequence[Ask]) -> dict[str, Any]:
        """Return output tokens per second, TTFT and TBT of one run, with all other systems stopped."""
        try:
            run = self.ask(do="run", asks=[asdict(ask) for ask in asks])
        finally:
            self._process.pause()
        return _figures(asks, run)

    def ask(self, **question: Any) -> dict[str, Any]:
        """Return the answer of its process, which must not be paused."""
        self._process.resume()
        return self._process.ask(self._timeout_s, **question)

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _checkpoint(self, system: System, load: Load, place: Place) -> Path:
        """Return the model in the system's format, converted once."""
        model = Path(load.model)
        if load.dtype not in system.prepared:
            return model
        into = place.environments / "models" / f"{system.runner}-{load.dtype}-{_fingerprint(model)}"
        if not into.exists():
            unfinished = into.with_name(into.name + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            into.parent.mkdir(parents=True, exist_ok=True)
            self.ask(do="prepare", model=str(model), dtype=load.dtype, into=str(unfinished))
            unfinished.rename(into)
        return into


def _figures(asks: Sequence[Ask], run: dict[str, Any]) -> dict[str, Any]:
    """Return a run's figures. Raises RunnerError if an answer has the wrong length."""
    answers = run["answers"]
    wanted, given = [ask.max_tokens for ask in asks], [len(answer["tokens"]) for answer in answers]
    if given != wanted:
        raise RunnerError(f"answers have {given} tokens instead of {wanted}")
    times = [answer["times_s"] for answer in answers]
    return {
        "output_tokens_per_s": sum(given) / run["seconds"],
        "ttft_ms": in_ms(own[0] - ask.arrival_s for own, ask in zip(times, asks, strict=True)),
        "tbt_ms": in_ms(after - before for own in times for before, after in pairwise(own)),
        "answering": answering(times, run["seconds"]),
    }


def answering(times: Sequence[Sequence[float]], seconds: float) -> dict[str, float]:
    """Return the mean over the run and the maximum of the number of requests between first and last token.

    A system whose maximum is above the batch size goes beyond it: it begins answers that it then continues in turns.
    """
    steps = sorted([(own[0], 1) for own in times] + [(own[-1], -1) for own in times])  # at the same time: ends first
    return {
        "mean": sum(own[-1] - own[0] for own in times) / seconds,
        "max": max(accumulate(step for _, step in steps)),
    }


def _command(system: System, place: Place) -> list[str]:
    environment = place.environment(system)
    python = sys.executable if environment is None else str(environment.python)
    return [python, "-m", "runners", system.runner]


def _variables(system: System, load: Load, place: Place) -> dict[str, str]:
    """Return this process's environment without the variables of its Python, plus those of the system."""
    environment = place.environment(system)
    home = Path(sys.prefix) if environment is None else environment.path
    kv_bytes = load.kv_tokens * kv_bytes_per_token(load.model, load.dtype)
    values = {
        "threads": load.threads,
        "cores": ",".join(map(str, sorted(usable_processors())[: load.threads])),
        "kv_gib": -(-kv_bytes // 2**30),
        "environment": home,
    }
    variables = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    path = os.pathsep.join(map(str, [_RUNNERS] if environment else [_RUNNERS, IMPORTED_FROM]))
    return {
        **variables,
        "PYTHONPATH": path,
        "PATH": os.pathsep.join([str(home / "bin"), variables.get("PATH", os.defpath)]),
        **{name: text.format(**values) for name, text in system.variables.items()},
    }


def _fingerprint(model: Path) -> str:
    """Return a fingerprint of the folder from its files' names, sizes and times."""
    files = sorted(file for file in model.iterdir() if file.is_file())
    facts = [str(model.resolve()), *((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
