"""The protocol between the bench and a system's process: one JSON object per line, one answer per question.

    {"do": "prepare", "model": DIR, "dtype": "int8", "into": DIR}   ->  {}
    {"do": "load", "model": DIR, "dtype": "int8", ...}              ->  {"version": "1.2.3"}
    {"do": "run", "asks": [{"prompt": [5, 6], "max_tokens": 2, "arrival_s": 0.0}, ...]}
                              ->  {"seconds": 1.5, "answers": [{"tokens": [7, 8], "times_s": [0.1, 0.2]}, ...]}

Any failure is answered with {"error": "..."}. The answers use a separate descriptor: what a library prints on standard
output goes to standard error.
"""

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Load:
    """What a system loads. `kv_tokens` is the capacity of its KV cache, `max_model_len` the maximum of prompt and
    output of one request, `threads` the number of computing threads. `max_num_batched_tokens` is the maximum of one
    iteration, for systems that compute prompts in parts (None: each system's default)."""

    model: str
    dtype: str
    device: str
    threads: int
    max_batch_size: int
    kv_tokens: int
    max_model_len: int
    max_num_batched_tokens: int | None = None


@dataclass(frozen=True)
class Ask:
    """One greedy request for exactly `max_tokens` tokens, which arrives `arrival_s` seconds after the start."""

    prompt: list[int]
    max_tokens: int
    arrival_s: float = 0.0


@dataclass
class Answer:
    """The output tokens and their times, in seconds after the start of the run."""

    tokens: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Piece:
    """Tokens of one request that arrived together, at `at_s` of time.monotonic(); None: when they are handed over."""

    index: int
    tokens: Sequence[int]
    at_s: float | None = None


class System(Protocol):
    """A loaded system, which keeps its model between runs."""

    version: str

    @property
    def busy(self) -> bool:
        """Whether requests are waiting or running."""

    def submit(self, index: int, ask: Ask) -> None:
        """Accept a request; `index` identifies it in the pieces."""

    def step(self) -> Iterable[Piece]:
        """Compute one of the system's own steps; return its output."""


def serve(name: str) -> None:
    """Answer the lines of standard input with the module `name` of this package until they end."""
    _die_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    process = _Process(name)
    for line in sys.stdin:
        try:
            answer = process.answer(json.loads(line))
        except Exception as error:  # the bench reports whatever a library raises
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def _die_with_parent() -> None:
    """Have the kernel kill this process, even if stopped, when its parent ends in any way (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Process:
    """One system, loaded on request."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._system: System | None = None

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        does: dict[str, Callable[..., dict[str, Any]]] = {
            "prepare": self._prepare,
            "load": self._load,
            "run": self._run,
        }
        return does[question.pop("do")](**question)

    def _module(self) -> Any:
        return import_module(f".{self._name}", __package__)

    def _prepare(self, model: str, dtype: str, into: str) -> dict[str, Any]:
        self._module().prepare(Path(model), dtype, Path(into))
        return {}

    def _load(self, **load: Any) -> dict[str, Any]:
        self._system = self._module().load(Load(**load))
        return {"version": self._system.version}

    def _run(self, asks: list[dict[str, Any]]) -> dict[str, Any]:
        from .drive import drive

        if self._system is None:
            raise RuntimeError("run: got it before load, allowed: load first")
        seconds, answers = drive(self._system, [Ask(**ask) for ask in asks])
        return {"seconds": seconds, "answers": [asdict(answer) for answer in answers]}
