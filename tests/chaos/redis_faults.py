"""The faults of Redis, and of the connections to it."""

import asyncio
import signal

from tests.chaos.cluster_service import ClusterService
from tests.chaos.injector import Acts, Injector, Planned
from tests.chaos.sentinel_service import SentinelService
from tests.chaos.services import LEASE_MS

_KINDS_OF_PROMOTION = 3


async def _kill_redis(injector: Injector, planned: Planned) -> None:
    async with injector.at_redis(planned) as (_, server):
        await injector.site.redis.kill(server)
        await asyncio.sleep(2 * planned.force)
        await server.start()


async def _freeze_redis(injector: Injector, planned: Planned) -> None:
    async with injector.at_redis(planned) as (_, server):
        server.signal(signal.SIGSTOP)
        await asyncio.sleep(0.3 + 1.5 * LEASE_MS / 1000 * planned.force)
        server.signal(signal.SIGCONT)


async def _refuse(injector: Injector, planned: Planned) -> None:
    """Cut and refuse connections; one time in eight for 20 s."""
    async with injector.at_redis(planned):
        redis = injector.site.redis
        await redis.refuse(everywhere=planned.target % 2 == 0)
        await asyncio.sleep(20 if planned.force > 0.875 else 0.3 + 5 * planned.force)
        await redis.listen()


async def _cut(injector: Injector, planned: Planned) -> None:
    """Cut connections in the middle of a command, or of a reply."""
    async with injector.at_redis(planned) as (_, server):
        server.proxy.cut("commands" if planned.target % 2 else "replies", 1 + int(5 * planned.force))
        await asyncio.sleep(1)


async def _delay(injector: Injector, planned: Planned) -> None:
    """Hold back what is sent over all, half, or a third of the connections for up to 2.5 leases; it arrives late."""
    async with injector.at_redis(planned) as (_, server), server.proxy.delay(1 + planned.target % 3):
        await asyncio.sleep(LEASE_MS / 1000 * (0.5 + 2 * planned.force))


async def _fill_memory(injector: Injector, planned: Planned) -> None:
    async with injector.at_redis(planned) as (_, server):
        await server.fill_memory()
        await asyncio.sleep(0.3 + 3 * planned.force)
        await server.free_memory()


async def _lack_replicas(injector: Injector, planned: Planned) -> None:
    async with injector.at_redis(planned) as (_, server), server.without_replicas():
        await asyncio.sleep(0.3 + 3 * planned.force)


async def _refuse_clients(injector: Injector, planned: Planned) -> None:
    async with injector.at_redis(planned) as (_, server), server.without_room():
        await asyncio.sleep(0.3 + 3 * planned.force)


async def _fill_disk(injector: Injector, planned: Planned) -> None:
    async with injector.at_redis(planned) as (_, server):
        await server.fill_disk()
        await asyncio.sleep(1 + 3 * planned.force)
        await server.free_disk()


async def _lose_machine(injector: Injector, planned: Planned) -> None:
    """Kill Redis; up to a second of acknowledged writes has not reached the disk."""
    async with injector.at_redis(planned) as (_, server):
        await injector.site.redis.lose_machine(server, planned.force)
        await server.start()


async def _promote(injector: Injector, planned: Planned) -> None:
    """Kill the master, freeze it, or ask it to step down, until the replica is the master; half the time the replica
    has lagged by up to a second.
    """
    redis = injector.site.redis
    assert isinstance(redis, SentinelService)
    async with injector.at_redis(planned) as (fault, server):
        if planned.target >= _KINDS_OF_PROMOTION:
            await redis.hold_up_replication()
            await asyncio.sleep(planned.force)
        match planned.target % _KINDS_OF_PROMOTION:
            case 0:
                fault.note = await redis.changed(server.kill)
                await server.start()
            case 1:
                fault.note = await redis.changed(lambda: asyncio.to_thread(server.signal, signal.SIGSTOP))
                server.signal(signal.SIGCONT)
            case _:
                fault.note = await redis.changed(redis.promote)


async def _move_slots(injector: Injector, planned: Planned) -> None:
    redis = injector.site.redis
    assert isinstance(redis, ClusterService)
    async with injector.at_redis(planned):
        await redis.move_slots(planned.target, 2 * planned.force)


REDIS_FAULTS: Acts = {
    "redis-kill": _kill_redis,
    "redis-freeze": _freeze_redis,
    "redis-refuse": _refuse,
    "redis-cut": _cut,
    "redis-late": _delay,
    "redis-memory": _fill_memory,
    "redis-replicas": _lack_replicas,
    "redis-clients": _refuse_clients,
    "redis-disk": _fill_disk,
    "machine-lost": _lose_machine,
    "replica-promoted": _promote,
    "slots-moved": _move_slots,
}
_ONLY_IN = {"machine-lost": "everysec", "replica-promoted": "sentinel", "slots-moved": "cluster"}


def can_suffer(mode: str, kind: str) -> bool:
    """Whether a mode of Redis supports this kind of fault."""
    return _ONLY_IN.get(kind, mode) == mode
