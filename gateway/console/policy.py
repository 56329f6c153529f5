"""POST /console/policy: switch the workers to another scheduling policy, for demonstrations."""

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from orcastream.broker.cancel import Control, wake_up
from orcastream.broker.errors import require
from orcastream.gateway.admission.query import check_query
from orcastream.gateway.errors import ApiError
from orcastream.gateway.log import log_event
from orcastream.gateway.openai.json_body import read_json_object
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.explain import first_complaint

if TYPE_CHECKING:
    from orcastream.gateway.service import Gateway


class PolicyBody(BaseModel):
    """The requested policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    policy: str = Field(min_length=1, max_length=64)


class PolicyOrder:
    """Switches the policy of workers that allow it (`allow_policy_switch`), from their next iteration on."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    async def post(self, request: Request) -> Response:
        """Switch all workers of the model.

        Requires the JSON content type, which another site's page cannot send unasked.
        """
        self._gateway.tenants.of(request.headers)
        check_query(request)
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            raise ApiError(415, "The body's content type must be application/json.", code="unsupported_media_type")
        policy = await self._wanted(request)
        allowed = await self._allowed()
        if policy not in allowed:
            raise InvalidRequest("policy", policy, ", ".join(sorted(allowed)))
        command = wake_up(self._gateway.models.default.keys, Control("policy", policy))
        link = await self._gateway.redis.get()
        require(await link.call_many([command]))
        log_event("policy switched", policy=policy)
        return JSONResponse({"policy": policy})

    async def _wanted(self, request: Request) -> str:
        """Return the policy in the body."""
        async with self._gateway.bodies.body_of(request) as raw:
            try:
                return PolicyBody.model_validate(read_json_object(raw, 0)).policy
            except ValidationError as error:
                raise first_complaint(error, "body") from None

    async def _allowed(self) -> set[str]:
        """Return the policies that live workers would switch to. Raises ApiError 409 if there are none."""
        workers = await self._gateway.models.default.workers.alive()
        allowed = {name for one in workers for name in one.info.get("policies", "").split()}
        if not allowed:
            raise ApiError(
                409, "No worker allows switching the policy: see allow_policy_switch.", code="policy_switch_not_allowed"
            )
        return allowed
