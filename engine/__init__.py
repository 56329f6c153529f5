"""The LLM engine: Orca's iteration-level scheduling and selective batching over a paged KV cache.

A pure library: no Redis, no HTTP, no environment variables. One thread owns an engine. The names below are loaded when
they are asked for: who needs the scheduling policies' names alone need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.beam import Beam
    from engine.config import EngineConfig
    from engine.engine import OrcaEngine
    from engine.errors import UnsupportedModel
    from engine.output import Completion, EngineStats, TokenEvent
    from engine.record import IterationRecord
    from engine.request import Request, RequestState, Timeline

_HOME = {
    "Beam": "beam",
    "Completion": "output",
    "EngineConfig": "config",
    "EngineStats": "output",
    "IterationRecord": "record",
    "OrcaEngine": "engine",
    "Request": "request",
    "RequestState": "request",
    "Timeline": "request",
    "TokenEvent": "output",
    "UnsupportedModel": "errors",
}
"""The module of each public name."""

__all__ = [
    "Beam",
    "Completion",
    "EngineConfig",
    "EngineStats",
    "IterationRecord",
    "OrcaEngine",
    "Request",
    "RequestState",
    "Timeline",
    "TokenEvent",
    "UnsupportedModel",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
