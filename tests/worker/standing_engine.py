"""A stalled engine in the test process."""

import threading

from orcastream.engine import OrcaEngine, TokenEvent
from tests.worker.demo_engine import demo_engine


def standing_engine() -> tuple[OrcaEngine, threading.Event]:
    """The demo model's engine; no iteration begins before the event is set."""
    engine = demo_engine()
    step, release = engine.step, threading.Event()

    def hang() -> list[TokenEvent]:
        release.wait()
        return step()

    engine.step = hang  # type: ignore[method-assign]
    return engine, release
