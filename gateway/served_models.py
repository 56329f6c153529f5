"""The registry of the models that a gateway serves."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from redis.exceptions import ResponseError

from orcastream.broker.errors import BrokerError
from orcastream.broker.origin import Origin
from orcastream.gateway.errors import model_not_found
from orcastream.gateway.served_model import ServedModel


class ServedModels:
    """At least one model, by name; the first is the default."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._by_name = {model.name: model for model in models}
        self.default = models[0]

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    @property
    def names(self) -> list[str]:
        """The names of the models, without adapters."""
        return list(self._by_name)

    async def all_named(self) -> "list[Named]":
        """Return everything a client may name: each model, followed by the adapters that its workers have."""
        named = []
        for model in self:
            with suppress(BrokerError, ResponseError):  # Redis is away: list the models anyway
                await model.workers.alive()
            named.append(Named(model))
            named += [Named(model, adapter) for adapter in model.workers.adapters if adapter not in self._by_name]
        return named

    async def named(self, name: str) -> "Named":
        """Return the model of that name, or the model that the adapter of that name modifies. Raises ApiError 404."""
        model = self._by_name.get(name)
        if model is not None:
            return Named(model)
        for one in self:
            with suppress(BrokerError, ResponseError):  # its workers may be about to report their adapters again
                await one.workers.returned()
        everything = await self.all_named()
        for known in everything:
            if known.name == name:
                return known
        raise model_not_found(name, [known.name for known in everything])

    @property
    def max_total_tokens(self) -> int:
        """Maximum number of prompt and output tokens over all models."""
        return max(model.workers.limits.max_total_tokens for model in self)

    async def find(self, request_id: str, tenant: str) -> "Found | None":
        """Return the request of a tenant that an id names; None if no model has it. Raises ApiError."""
        for model in self:
            for meant in model.ids.meant(request_id, tenant):
                origin = await model.origin(meant)
                if origin is not None and (origin.model, origin.tenant) == (model.name, tenant):
                    return Found(model, meant, origin)
        return None


@dataclass(frozen=True, slots=True)
class Named:
    """The meaning of a name: a model, or a model with an adapter."""

    model: ServedModel
    adapter: str = ""

    @property
    def name(self) -> str:
        """The name."""
        return self.adapter or self.model.name


@dataclass(frozen=True, slots=True)
class Found:
    """A request: its model, its id in the queue, and what is known of it."""

    model: ServedModel
    request_id: str
    origin: Origin

    @property
    def shown_id(self) -> str:
        """The client's id of the request."""
        return self.model.ids.shown(self.request_id, self.origin.tenant)

    @property
    def shown_model(self) -> str:
        """The model's name for clients, as far as it is still known."""
        adapter = "" if self.origin.request is None else self.origin.request.payload.adapter
        return adapter or self.model.name
