"""A stalled engine in the test process."""

import threading

from orcastream import demo
from orcastream.engine import EngineConfig, OrcaEngine, TokenEvent


def standing_engine() -> tuple[OrcaEngine, threading.Event]:
    """The demo model's engine; no iteration begins before the event is set."""
    engine = OrcaEngine.load(EngineConfig(model=str(demo.MODEL_DIR), device="cpu", self_check=False))
    step, release = engine.step, threading.Event()

    def hang() -> list[TokenEvent]:
        release.wait()
        return step()

    engine.step = hang  # type: ignore[method-assign]
    return engine, release
