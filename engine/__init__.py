"""The LLM engine: Orca's iteration-level scheduling and selective batching over a paged KV cache.

A pure library: no Redis, no HTTP, no environment variables. One thread owns an engine.
"""

from engine.beam import Beam
from engine.config import EngineConfig
from engine.engine import OrcaEngine
from engine.errors import UnsupportedModel
from engine.output import Completion, EngineStats, TokenEvent
from engine.record import IterationRecord
from engine.request import Request, RequestState, Timeline

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
