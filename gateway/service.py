"""One gateway: the parts that its models share, put together from the settings, and its life cycle."""

import asyncio
import logging
import time

from redis.exceptions import ResponseError

from orcastream.broker.connection import Connection
from orcastream.broker.errors import BrokerError
from orcastream.broker.presence import new_process_name
from orcastream.broker.redis_link import RedisLink
from orcastream.broker.server_state import read_server_state
from orcastream.gateway.admission.key_source import KeyFile, KeysInRedis, KeySource
from orcastream.gateway.admission.offload import Offload
from orcastream.gateway.admission.tenants import Tenants
from orcastream.gateway.http.body_memory import BodyMemory
from orcastream.gateway.log import LOGGER, log_event
from orcastream.gateway.metrics import GatewayMetrics
from orcastream.gateway.served_model import ServedModel
from orcastream.gateway.served_models import ServedModels
from orcastream.gateway.settings import GatewaySettings
from orcastream.gateway.shutdown import Shutdown
from orcastream.telemetry.queue_gauges import INTERVAL_S
from orcastream.telemetry.setup import Telemetry


def new_gateway_name() -> str:
    """Return a name that no earlier process and no worker has."""
    return f"gateway-{new_process_name()}"


class Gateway:
    """Everything that the routes share.

    Stateless: all its state may be lost at any moment, and another gateway continues.
    """

    def __init__(
        self, settings: GatewaySettings, *, name: str | None = None, telemetry: Telemetry | None = None
    ) -> None:
        """Load the models' tokenizers; does not connect. Raises ValueError if a setting is missing.

        `telemetry` is this process's telemetry; None means that none was started.
        """
        if not settings.connection_url:
            raise ValueError(
                "redis_url: got none, allowed: a redis://, rediss://, unix://, redis+sentinel:// or redis+cluster:// "
                "URL"
            )
        if not settings.model:
            raise ValueError("model: got none, allowed: a directory or hub id")
        self.settings = settings
        self.name = name or new_gateway_name()
        self.telemetry = telemetry or Telemetry()
        sources = settings.sources()
        self.metrics = GatewayMetrics([source.name for source in sources])
        self.started_at = int(time.time())
        self.bodies = BodyMemory(settings.max_bodies_bytes)
        self.offload = Offload()
        self.shutdown = Shutdown()
        observer = self.metrics.redis if self.telemetry.on else None
        self.redis = RedisLink(settings.connection_url, self.name, observer)
        self.models = ServedModels(
            [
                ServedModel(source, settings, self.redis, self.shutdown, gateway=self.name, observer=observer)
                for source in sources
            ]
        )
        self.tenants = Tenants(settings.api_keys, self._key_source())
        self._ready: bool | None = None
        self._warning: str | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start reading, sweeping and attendance; does not wait for Redis."""
        for model in self.models:
            await model.start()
        works = [self.tenants.keep_fresh(self.settings.api_keys_reload_s)]
        if self.telemetry.on:
            works.append(self._keep_gauging())
        self._tasks = [asyncio.create_task(work) for work in works]
        log_event("serving", level=logging.INFO, gateway=self.name, model=", ".join(self.models.names))

    def _key_source(self) -> KeySource | None:
        if self.settings.api_keys_file is not None:
            return KeyFile(self.settings.api_keys_file)
        return KeysInRedis(self.redis, self.settings.keys()) if self.settings.api_keys_in_redis else None

    def begin_stop(self) -> None:
        """Accept no new requests; open streams get `shutdown_grace_s` to end."""
        if not self.shutdown.stopping:
            log_event("stopping", level=logging.INFO, gateway=self.name)
            self.shutdown.begin(self.settings.shutdown_grace_s)

    async def close(self) -> None:
        """Stop everything; cancels no request."""
        self.shutdown.end_now()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.offload.close()
        for model in self.models:
            await model.close()
        await self.redis.close()
        log_event("stopped", level=logging.INFO, gateway=self.name)

    def told_ready(self, why_not: str | None) -> None:
        """Log one line if a readiness probe's answer differs from the previous one."""
        ready = why_not is None
        if ready is not self._ready and not self.shutdown.stopping:
            level = logging.INFO if ready else logging.WARNING
            log_event("ready" if ready else "not ready", level=level, gateway=self.name, why=why_not)
        self._ready = ready

    def told_warning(self, warning: str | None) -> None:
        """Log one line if a readiness probe finds a warning that the previous one did not."""
        if warning is not None and warning != self._warning:
            log_event("Redis may lose requests", level=logging.WARNING, why=warning)
        self._warning = warning

    async def _keep_gauging(self) -> None:
        """Sample the queues and their server periodically while metrics are collected."""
        while True:
            if self.models.default.metrics.queue.wanted:
                await self._gauge()
            await asyncio.sleep(INTERVAL_S)

    async def _gauge(self) -> None:
        """Take one sample of everything that can be reached: in a cluster, one model's node may be down alone."""
        for look in (*(model.look_at_the_queue for model in self.models), self._look_at_the_server):
            try:
                await look(await self.redis.get())
            except (BrokerError, ResponseError) as error:
                log_event("queue not looked at", why=error)
            except Exception:
                LOGGER.exception("looking at the queue failed")

    async def _look_at_the_server(self, link: Connection) -> None:
        server = await link.link_for(self.models.default.keys.control)
        self.metrics.server_state(await read_server_state(server))
