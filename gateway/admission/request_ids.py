"""Ids of requests: the client's id of a request, and the id in the queue.

An id chosen by a client (an idempotency key, too) belongs to its tenant and model: two tenants may use the same one,
and their requests have different ids in Redis, where each id has one reply log.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from orcastream.schemas.keys import DEFAULT_TENANT

_SCOPE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class RequestIds:
    """The ids of one served model. The default tenant's ids of the default model are used unchanged."""

    model: str
    is_default: bool = True

    def in_queue(self, request_id: str, tenant: str) -> str:
        """Return the queue's id for the client's own id; it may exceed the length limit of ids."""
        return request_id + self._scope(tenant)

    def shown(self, request_id: str, tenant: str) -> str:
        """Return the client's id."""
        return request_id.removesuffix(self._scope(tenant))

    def meant(self, request_id: str, tenant: str) -> list[str]:
        """Return the queue ids that a client's id may stand for: its own, or one that the gateway made for it."""
        return list(dict.fromkeys((request_id, self.in_queue(request_id, tenant))))

    def _scope(self, tenant: str) -> str:
        if tenant == DEFAULT_TENANT and self.is_default:
            return ""
        return f".{blake2b(f'{tenant} {self.model}'.encode(), digest_size=_SCOPE_BYTES).hexdigest()}"
