"""An engine with the demo model in the test process."""

from typing import Any

from orcastream import demo
from orcastream.engine import EngineConfig, OrcaEngine

_CACHE_BYTES = 64 * 2**20


def demo_engine(**settings: Any) -> OrcaEngine:
    """Load one whose cache is small: the metrics of a worker in this process keep its engine until the process ends."""
    settings = {"device": "cpu", "self_check": False, "kv_cache_memory": _CACHE_BYTES, **settings}
    return OrcaEngine.load(EngineConfig(model=str(demo.MODEL_DIR), **settings))
