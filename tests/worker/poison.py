"""Requests that kill or hang any worker that computes them: called in a worker's process before it starts."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.batch.executor import Executor
from tests.chaos.patches import pace

STALL_S = 600


def _meets(prefix: str, act: Any) -> None:
    """Call `act` before an iteration computes a request whose id begins with `prefix`."""
    launch = Executor.launch

    def guarded(self: Executor, prepared: Any, pending: Any) -> None:
        if any(request.id.startswith(prefix) for request in prepared.plan.requests):
            act()
        launch(self, prepared, pending)

    Executor.launch = guarded  # type: ignore[method-assign]


def kills() -> None:
    """An iteration with a request `poison...` kills the process."""
    _meets("poison", lambda: os.kill(os.getpid(), signal.SIGKILL))


def kills_once_counted() -> None:
    """Iterations with a request `poison...` take a while; once an attempt is counted, they kill the process."""
    counted = _counting()

    def act() -> None:
        time.sleep(0.2)
        if counted.is_set():
            os.kill(os.getpid(), signal.SIGKILL)

    _meets("poison", act)


def kills_in_flight_once_counted() -> None:
    """As `kills_once_counted` on a device that computes ahead: the process is killed when the tokens are read."""
    counted, assemble, draw = _counting(), OrcaEngine.__init__, Executor.draw

    def overlapping(self: OrcaEngine, config: EngineConfig, model: Any) -> None:
        assemble(self, replace(config, overlap="on"), model)

    def guarded(self: Executor, pending: Any) -> Any:
        if counted.is_set() and any(request.id.startswith("poison") for request in pending.plan.requests):
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(self, pending)

    OrcaEngine.__init__ = overlapping  # type: ignore[method-assign]  # this process is a test's alone
    Executor.draw = guarded  # type: ignore[method-assign]  # likewise
    _meets("poison", lambda: time.sleep(0.2))


def _counting() -> Event:
    """Return an event that is set once an attempt is counted."""
    from orcastream.broker.lease import Leases

    count_attempt, counted = Leases.count_attempt, Event()

    def guarded(self: Leases, ref: Any) -> None:
        count_attempt(self, ref)
        counted.set()

    Leases.count_attempt = guarded  # type: ignore[method-assign]  # this process is a test's alone
    return counted


def kills_before_writing() -> None:
    """As `kills`, where iterations take a while, and writing the output of one takes longer than the next."""
    from orcastream.worker.publisher import Publisher

    flush = Publisher.flush

    async def guarded(self: Publisher, session: Any) -> Any:
        await asyncio.sleep(0.2)
        return await flush(self, session)

    Publisher.flush = guarded  # type: ignore[method-assign]  # this process is a test's alone
    pace(0.01)
    kills()


def kills_before() -> None:
    """Compiling a constraint that contains `poison` kills the process."""
    from orcastream.worker.constraints import Constraints

    matcher = Constraints.matcher

    def guarded(self: Constraints, constraint: Any) -> Any:
        if "poison" in constraint.choice:
            os.kill(os.getpid(), signal.SIGKILL)
        return matcher(self, constraint)

    Constraints.matcher = guarded  # type: ignore[method-assign]


def kills_reading() -> None:
    """To read the adapter `poison` ends the process."""
    from orcastream.engine import Adapters

    read = Adapters.read

    def guarded(self: Adapters, name: str, folder: Path) -> Any:
        if name == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, name, folder)

    Adapters.read = guarded  # type: ignore[method-assign]


def stalls() -> None:
    """An iteration with a request `stall...` never ends."""
    _meets("stall", lambda: time.sleep(STALL_S))


def mutes() -> None:
    """After the first output of a request `mute...`, the engine can publish nothing more, not even its own end."""
    from orcastream.worker.outbox import Outbox

    deliver, muted = Outbox.deliver, Event()

    def guarded(self: Outbox, output: Any) -> None:
        if any(event.request_id.startswith("mute") for event in output):
            muted.set()
        if muted.is_set():
            raise MemoryError
        deliver(self, output)

    Outbox.deliver = guarded  # type: ignore[method-assign]


def blocks() -> None:
    """The event loop of a worker that claims a request `block...` never runs again."""
    from orcastream.worker.admission import Admission

    admit = Admission.admit

    async def guarded(self: Admission, session: Any, claimed: Any) -> Any:
        if claimed.fields[b"id"].startswith(b"block"):
            time.sleep(STALL_S)  # noqa: ASYNC251  # it must block the loop
        return await admit(self, session, claimed)

    Admission.admit = guarded  # type: ignore[method-assign]  # this process is a test's alone


def refuses_threads() -> None:
    """From the engine's start on, the host refuses this process another thread."""
    from orcastream.worker.engine_loop import EngineLoop

    start = EngineLoop.start

    def guarded(self: EngineLoop) -> None:
        start(self)
        refuses_every_thread()

    EngineLoop.start = guarded  # type: ignore[method-assign]  # this process is a test's alone


def refuses_every_thread() -> None:
    """The host refuses this process another thread."""
    Thread.start = _refused  # type: ignore[method-assign]  # this process is a test's alone


def refuses_the_engines_thread() -> None:
    """The host refuses this process the thread of the engine."""
    from orcastream.worker.engine_loop import EngineLoop

    EngineLoop.start = _refused  # type: ignore[method-assign]  # this process is a test's alone


def _refused(self: Thread) -> None:
    raise RuntimeError("can't start new thread")


def lacks_memory() -> None:
    """No iteration with a request `large...` finds memory, not even for one token."""
    _meets("large", lambda: torch.empty(1 << 60))


def lacks_memory_for_weights() -> None:
    """The host has no memory for the weights."""
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained = lambda *_, **__: torch.empty(1 << 60)
