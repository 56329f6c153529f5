"""The records that gateways store next to queue entries, for clients that ask for the response; bounded per tenant."""

from dataclasses import dataclass

from redis.exceptions import ResponseError

from orcastream.broker.connection import Connection
from orcastream.broker.errors import WRONG_TYPE, error_code, require
from orcastream.broker.scripts import DROP_RESPONSE, KEEP_RESPONSE
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class KeptResponses:
    """The records of one model's requests. `enqueue` writes each together with its entry.

    `max_bytes`: most bytes of one tenant's records, in all lanes together; beyond it the first to expire are deleted.
    Calls raise LinkLost, Unwritable, and may be repeated.
    """

    keys: Keys
    max_bytes: int

    async def count(self, link: Connection, request: GenerationRequest, *, expire_at_ms: int) -> None:
        """Count the record of an accepted request, and delete records beyond the bound."""
        size = len((request.record or "").encode())
        names = self._counts(request.id, request.payload.tenant)
        most = -(-self.max_bytes // self.keys.queue_lanes)
        (dropped,) = replies = await link.call_many([KEEP_RESPONSE.call(names, [request.id, size, expire_at_ms, most])])
        require(replies)
        if dropped:
            require(await link.call_many([("DEL", self.keys.response(request_id.decode())) for request_id in dropped]))

    async def read(self, link: Connection, request_id: str) -> bytes | None:
        """Return the record; None if there is none, or the key holds something else."""
        (found,) = replies = await link.call_many([("GET", self.keys.response(request_id))])
        if isinstance(found, ResponseError) and error_code(found) == WRONG_TYPE:
            return None
        require(replies)
        return found if found is None else bytes(found)

    async def delete(self, link: Connection, request_id: str, tenant: str) -> bool:
        """Delete the record; False if there is none."""
        names = [*self._counts(request_id, tenant), self.keys.response(request_id)]
        (deleted,) = replies = await link.call_many([DROP_RESPONSE.call(names, [request_id])])
        require(replies)
        return bool(deleted)

    def _counts(self, request_id: str, tenant: str) -> list[str]:
        keys = self.keys.in_lane(self.keys.lane_of(request_id))
        return [keys.responses(tenant), keys.response_bytes(tenant)]
