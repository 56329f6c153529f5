"""The LLM engine: Orca's iteration-level scheduling and selective batching over a paged KV cache.

A pure library: no Redis, no HTTP, no environment variables. One thread owns an engine. The names below are imported on
first use, so that code that needs only the names of the scheduling policies does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orcastream.engine.beam import Beam
    from orcastream.engine.config import EngineConfig
    from orcastream.engine.engine import OrcaEngine
    from orcastream.engine.errors import UnsupportedAdapter, UnsupportedModel, is_thread_refused
    from orcastream.engine.memory_errors import is_out_of_memory
    from orcastream.engine.model.adapters.adapter import Adapter
    from orcastream.engine.model.adapters.adapters import Adapters
    from orcastream.engine.output import Completion, EngineStats, PromptEvent, TokenEvent
    from orcastream.engine.record import IterationRecord
    from orcastream.engine.request import Request, RequestState
    from orcastream.engine.timeline import Timeline

_HOME = {
    "Adapter": "model.adapters.adapter",
    "Adapters": "model.adapters.adapters",
    "Beam": "beam",
    "Completion": "output",
    "EngineConfig": "config",
    "EngineStats": "output",
    "IterationRecord": "record",
    "OrcaEngine": "engine",
    "PromptEvent": "output",
    "Request": "request",
    "RequestState": "request",
    "Timeline": "timeline",
    "TokenEvent": "output",
    "UnsupportedAdapter": "errors",
    "UnsupportedModel": "errors",
    "is_out_of_memory": "memory_errors",
    "is_thread_refused": "errors",
}
"""The module of each public name."""

__all__ = [
    "Adapter",
    "Adapters",
    "Beam",
    "Completion",
    "EngineConfig",
    "EngineStats",
    "IterationRecord",
    "OrcaEngine",
    "PromptEvent",
    "Request",
    "RequestState",
    "Timeline",
    "TokenEvent",
    "UnsupportedAdapter",
    "UnsupportedModel",
    "is_out_of_memory",
    "is_thread_refused",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
