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
    """At least one model, by name, the first of which is the default."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._by_name = {model.name: model for model in models}
        self.default = models[0]

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    @property
    def names(self) -> list[str]:
        """The names of the models themselves."""
        return list(self._by_name)

    async def all_named(self) -> "list[Named]":
        """Everything that may be asked for: each model, and behind it the adapters that its workers have."""
        named = []
        for model in self:
            with suppress(BrokerError, ResponseError):  # Redis is away: the models are served nevertheless
                await model.workers.alive()
            named.append(Named(model))
            named += [Named(model, adapter) for adapter in model.workers.adapters if adapter not in self._by_name]
        return named

    async def named(self, name: str) -> "Named":
        """The model of that name, or the one that an adapter of that name changes; ApiError 404."""
        model = self._by_name.get(name)
        if model is not None:
            return Named(model)
        for one in self:
            with suppress(BrokerError, ResponseError):  # its workers may be about to tell of their adapters again
                await one.workers.returned()
        everything = await self.all_named()
        for known in everything:
            if known.name == name:
                return known
        raise model_not_found(name, [known.name for known in everything])

    @property
    def max_total_tokens(self) -> int:
        """Most prompt and output tokens that any of the models takes."""
        return max(model.workers.limits.max_total_tokens for model in self)

    async def find(self, request_id: str, tenant: str) -> "Found | None":
        """The request of a tenant that an id names; None where no model has it. Raises ApiError."""
        for model in self:
            for meant in model.ids.meant(request_id, tenant):
                origin = await model.origin(meant)
                if origin is not None and (origin.model, origin.tenant) == (model.name, tenant):
                    return Found(model, meant, origin)
        return None


@dataclass(frozen=True, slots=True)
class Named:
    """What a name stands for: a model, or one as an adapter changes it."""

    model: ServedModel
    adapter: str = ""

    @property
    def name(self) -> str:
        """The name."""
        return self.adapter or self.model.name


@dataclass(frozen=True, slots=True)
class Found:
    """A request: of which model, what it is called in the queue, and what is known of it."""

    model: ServedModel
    request_id: str
    origin: Origin

    @property
    def shown_model(self) -> str:
        """What clients call the model, as far as it is still known."""
        adapter = "" if self.origin.request is None else self.origin.request.payload.adapter
        return adapter or self.model.name
