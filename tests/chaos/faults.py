"""The faults, by name: what each does, and how long it lasts."""

import asyncio
import signal
import socket
import time

from tests.chaos.injector import Acts, Fault, Injector, Planned
from tests.chaos.redis_faults import REDIS_FAULTS, can_suffer
from tests.chaos.services import LEASE_MS, Service
from tests.chaos.thread_stop import busiest_thread, stall

_LEASE_S = LEASE_MS / 1000
_ANSWER_S = 0.4
_START_S = 3.0
_DRAIN_S = 1.6


async def _kill(injector: Injector, planned: Planned) -> None:
    async with injector.at_work(planned) as (_, service):
        await service.kill()
        await asyncio.sleep(planned.force)
        await injector.site.revive(service)


async def _kill_while_starting(injector: Injector, planned: Planned) -> None:
    """Kill, and kill the next process while it starts."""
    async with injector.at_work(planned) as (_, service):
        await service.kill()
        service.start()
        await asyncio.sleep(_START_S * planned.force)
        await service.kill()
        await injector.site.revive(service)


async def _kill_while_draining(injector: Injector, planned: Planned) -> None:
    """Send SIGTERM, and SIGKILL while it finishes or hands over what it runs."""
    async with injector.at_work(planned) as (_, service):
        service.signal(signal.SIGTERM)
        await asyncio.sleep(_DRAIN_S * planned.force)
        await service.kill()
        await injector.site.revive(service)


async def _freeze_while_draining(injector: Injector, planned: Planned) -> None:
    """Send SIGTERM, then SIGSTOP for longer than the lease, then SIGCONT; the promised exit status is 0."""
    async with injector.at_work(planned) as (_, service):
        service.signal(signal.SIGTERM)
        await asyncio.sleep(_DRAIN_S * planned.force)
        service.signal(signal.SIGSTOP)
        await asyncio.sleep(_LEASE_S * (1.2 + 1.5 * planned.force))
        service.signal(signal.SIGCONT)
        await _told_to_stop(injector, service)


async def _drain(injector: Injector, planned: Planned) -> None:
    """Send SIGTERM; the promised exit status is 0."""
    async with injector.at_work(planned) as (_, service):
        service.signal(signal.SIGTERM)
        await _told_to_stop(injector, service)


async def _told_to_stop(injector: Injector, service: Service) -> None:
    """Wait for the end of a service that was told to stop, and restart it."""
    code = await service.ended()
    if code != 0:
        injector.site.note_death(service, f"was told to stop and ended with status {code}")
        await service.kill()
    await injector.site.revive(service)


async def _freeze(injector: Injector, planned: Planned) -> None:
    """Send SIGSTOP for longer than the lease, then SIGCONT."""
    async with injector.at_work(planned) as (_, service):
        service.signal(signal.SIGSTOP)
        await asyncio.sleep(_LEASE_S * (1.2 + 1.5 * planned.force))
        service.signal(signal.SIGCONT)


async def _stall_engine(injector: Injector, planned: Planned) -> None:
    """Stop the engine's thread for longer than the lease, while the rest of the worker runs."""
    async with injector.at_work(planned) as (fault, service):
        thread_id = busiest_thread(service.pid) if service.pid else None
        if thread_id is None:
            fault.note = "no engine"
            return
        seconds = _LEASE_S * (1.2 + 1.5 * planned.force)
        try:
            if not await asyncio.to_thread(stall, thread_id, seconds, lambda: _answers_now(service.port)):
                fault.note = "the engine held the interpreter each time"
        except OSError as error:
            fault.note = f"not possible here: {error}"


async def _drop_clients(injector: Injector, planned: Planned) -> None:
    """Drop the connections of some clients, which then reconnect."""
    streams = list(injector.http.open_streams.values())
    for broken in streams[: 1 + int(4 * planned.force)]:
        broken.set()
    now = time.monotonic()
    note = "" if streams else "no client was there"
    injector.faults.append(Fault(planned.kind, f"{len(streams)} streams", now, now, note))


def _answers_now(port: int) -> bool:
    """Whether a worker's admin port answers promptly, which means that one of its threads runs Python."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S) as connection:
            connection.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
            return bool(connection.recv(16))
    except OSError:
        return False


FAULTS: Acts = {
    "worker-kill": _kill,
    "worker-freeze": _freeze,
    "worker-drain": _drain,
    "worker-kill-starting": _kill_while_starting,
    "worker-kill-draining": _kill_while_draining,
    "worker-freeze-draining": _freeze_while_draining,
    "engine-stall": _stall_engine,
    "gateway-kill": _kill,
    "gateway-drain": _drain,
    "gateway-freeze": _freeze,
    **REDIS_FAULTS,
    "client-gone": _drop_clients,
}


def faults_of(mode: str) -> list[str]:
    """Return the kinds that apply to a mode of Redis."""
    return [kind for kind in FAULTS if can_suffer(mode, kind)]
