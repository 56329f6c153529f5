"""Ids of requests: what a client calls one, and what it is called in the queue.

An id of a client's own, an idempotency key among them, belongs to its tenant and model: two tenants may have one alike,
and in Redis, where there is one reply log for an id, their requests have two.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from orcastream.schemas.request import DEFAULT_TENANT

_SCOPE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class RequestIds:
    """The ids of one served model. Of the default tenant and model they are what clients say."""

    model: str
    is_default: bool = True

    def in_queue(self, request_id: str, tenant: str) -> str:
        """What the client's own id is called in the queue; may be longer than ids are."""
        return request_id + self._scope(tenant)

    def shown(self, request_id: str, tenant: str) -> str:
        """What the client calls it."""
        return request_id.removesuffix(self._scope(tenant))

    def meant(self, request_id: str, tenant: str) -> list[str]:
        """What an id that a client asks for may be called in the queue: its own, or one that was made for it."""
        return list(dict.fromkeys((request_id, self.in_queue(request_id, tenant))))

    def _scope(self, tenant: str) -> str:
        if tenant == DEFAULT_TENANT and self.is_default:
            return ""
        return f".{blake2b(f'{tenant} {self.model}'.encode(), digest_size=_SCOPE_BYTES).hexdigest()}"
