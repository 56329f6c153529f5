"""From a POST to a generating endpoint to requests in the queue."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request

from orcastream.broker.entry import EntryRef
from orcastream.broker.errors import IdInUse, ReplyExpired
from orcastream.broker.posting import Counting, counting_request
from orcastream.broker.queue import Enqueued
from orcastream.gateway.admission.api_key import Grant
from orcastream.gateway.admission.query import check_query
from orcastream.gateway.admission.single_header import single_header
from orcastream.gateway.errors import id_in_use, invalid, reply_expired
from orcastream.gateway.http.request_id import name_request
from orcastream.gateway.log import log_event
from orcastream.gateway.openai.endpoint import GenerationEndpoint
from orcastream.gateway.openai.options import Options
from orcastream.gateway.openai.request import ApiRequest, parse_body
from orcastream.gateway.replies.reply_session import ReplySession
from orcastream.gateway.request_telemetry import RequestTelemetry
from orcastream.gateway.served_model import ServedModel
from orcastream.gateway.service import Gateway
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.limits import ID_PATTERN
from orcastream.schemas.model_limits import ModelLimits
from orcastream.schemas.request import GenerationRequest

Prepare = Callable[[ApiRequest, str], Awaitable[ApiRequest]]
"""Completes a tenant's parsed body with data from Redis."""


@dataclass(frozen=True, slots=True)
class Received:
    """A checked body and its requests, one per prompt."""

    model: ServedModel
    asked: ApiRequest
    grant: Grant
    requests: list[GenerationRequest]

    @property
    def shown_model(self) -> str:
        """The model's name in the client's request."""
        return self.asked.parameters.adapter or self.model.name


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request in the queue. `counting` is the first request with its id; None if that one's entry is gone.

    `num_choices`: how many choices the answer has.
    """

    model: ServedModel
    request: GenerationRequest
    counting: GenerationRequest | None
    num_choices: int
    entry: EntryRef
    is_duplicate: bool
    telemetry: RequestTelemetry

    @property
    def tenant(self) -> str:
        """The tenant that the request belongs to."""
        return self.request.payload.tenant

    @property
    def shown_id(self) -> str:
        """The client's id of the request."""
        return self.model.ids.shown(self.request.id, self.tenant)

    @property
    def is_own(self) -> bool:
        """Whether this very request is queued, and not an earlier one with its id."""
        return self.counting == self.request

    def session(self) -> ReplySession:
        """Start a session that reads the reply for the client."""
        return ReplySession(
            self.model,
            self.request.id,
            self.tenant,
            self.entry,
            request=self.counting,
            accepted=self.is_own,
            telemetry=self.telemetry,
        )


async def receive(
    gateway: Gateway, endpoint: GenerationEndpoint, request: Request, prepare: Prepare | None = None
) -> Received:
    """Read, check and admit a body. Raises ApiError, InvalidRequest, BrokerError."""
    grant = gateway.tenants.of(request.headers)
    check_query(request)
    key = single_header(request.headers, "Idempotency-Key")
    if key is not None and ID_PATTERN.fullmatch(key):
        name_request(request.scope, endpoint.own_id(key))
    async with gateway.bodies.body_of(request) as raw:
        parse = partial(parse_body, endpoint, raw, gateway.models.max_total_tokens)
        asked = await gateway.offload.run(len(raw), parse)
        named = await gateway.models.named(asked.options.model)
        model, asked = named.model, asked.with_adapter(named.adapter)
        request.state.model = model.name
        limits = await model.require_worker()
        if prepare is not None:
            asked = await prepare(asked, grant.tenant)
        admitted = await gateway.offload.run(len(raw), partial(admit, model, limits, asked, grant, request.headers))
        name_request(request.scope, model.ids.shown(admitted[0].id, grant.tenant))
    return Received(model, asked, grant, admitted)


def admit(
    model: ServedModel, limits: ModelLimits, asked: ApiRequest, grant: Grant, headers: Mapping[str, str]
) -> list[GenerationRequest]:
    """Return the requests in a parsed body, within the limits of its client's key; see `RequestAdmission.admit`."""
    _check_allowed(asked, grant)
    return model.admission.admit(
        asked, limits, tenant=grant.tenant, headers=headers, now_ms=model.redis.now_ms, longest=grant.max_tokens
    )


def _check_allowed(asked: ApiRequest, grant: Grant) -> None:
    """Raise ApiError if the client asks for more than its key allows."""
    grant.check_class(asked.options.priority_class, asked.options.tier)
    try:
        grant.check_lengths(asked.parameters)
    except InvalidRequest as error:
        raise invalid(asked.told(error, 0), "not_allowed") from None


async def accept(
    model: ServedModel, request: GenerationRequest, options: Options, grant: Grant, telemetry: RequestTelemetry
) -> Accepted:
    """Put one request into the queue. Raises ApiError."""
    telemetry.asked(request, model.name, model.metrics)
    request, enqueued = await model.send(request, grant, durable=options.durable)
    counting = await _counting(model, request, enqueued)
    log_event(
        "repeated" if enqueued.duplicate else "accepted",
        request=request.id,
        entry=enqueued.entry,
        tenant=grant.tenant,
        user=options.user,
        prompt_tokens=len(request.payload.prompt),
        stream=options.stream,
    )
    num_choices = request.payload.n if counting.num_choices is None else counting.num_choices
    return Accepted(model, request, counting.request, num_choices, enqueued.entry, enqueued.duplicate, telemetry)


async def _counting(model: ServedModel, request: GenerationRequest, enqueued: Enqueued) -> Counting:
    """Return the request that counts under this id. Raises ApiError."""
    keys, redis = model.keys, model.redis
    try:
        return await model.patiently(lambda link: counting_request(link, keys, request, enqueued, redis.now_ms))
    except IdInUse as error:
        raise id_in_use(error) from None
    except ReplyExpired as error:
        raise reply_expired(error) from None
