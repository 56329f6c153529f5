"""Attaching a suspect: the engine's pause before its turn."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

from orcastream.engine import Request, TokenEvent
from orcastream.schemas.sampling import SamplingParams
from orcastream.worker.attacher import Attacher
from orcastream.worker.engine_loop import EngineLoop
from orcastream.worker.isolation import Isolation
from tests.patience import PATIENCE_S
from tests.redis_waiting import wait_until
from tests.worker.standing_engine import standing_engine
from tests.worker.test_candidates import CLAIMED_MS, new_running


async def test_others_continue_if_the_session_ends_while_a_suspect_waits_for_its_turn() -> None:
    engine, release = standing_engine()
    ended, attached = threading.Event(), asyncio.Event()

    def deliver(events: Sequence[Any]) -> None:
        engine_loop.published(len(events))
        if any(isinstance(event, TokenEvent) and event.finish_reason for event in events):
            ended.set()

    async def attach(*_: object, **__: object) -> bool:
        attached.set()
        return True

    async def ready(_: object) -> None:
        """It needs no adapter."""

    engine_loop = EngineLoop(engine, deliver, max_unpublished=100)
    engine_loop.start()
    engine_loop.submit([Request("other", (1, 2, 3), SamplingParams(max_tokens=9, ignore_eos=True))])
    wait_until(lambda: engine_loop.busy)
    suspect, isolation = new_running(), Isolation(engine_loop)
    suspect.suspect = True
    isolation.add(suspect)
    parts = SimpleNamespace(
        isolation=isolation,
        engine_loop=engine_loop,
        admission=SimpleNamespace(attach=attach),
        adapter_waits=SimpleNamespace(ready=ready),
        outbox=SimpleNamespace(iterated=asyncio.Event()),
    )
    attacher = Attacher(cast(Any, SimpleNamespace(now_ms=CLAIMED_MS)), cast(Any, parts), cast(Any, None), lambda: False)
    attaching = asyncio.create_task(attacher.attach(await isolation.next()))
    await attached.wait()
    attaching.cancel()  # as the session's tasks are when its connection is lost
    with suppress(asyncio.CancelledError):
        await attaching
    release.set()
    assert await asyncio.to_thread(ended.wait, PATIENCE_S)
    engine_loop.stop()
