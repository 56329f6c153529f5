"""One API key: how it is made, what is kept of it, and what it allows."""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orcastream.broker.resp import fields_of
from orcastream.broker.settings import NAME
from orcastream.gateway.errors import ApiError
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.explain import first_complaint
from orcastream.schemas.keys import PriorityClass
from orcastream.schemas.limits import MAX_OUTPUT_TOKENS
from orcastream.schemas.request import RequestParameters

_PREFIX: Final = "orca_"
_BYTES: Final = 32
MAX_RATE: Final = 1_000_000
"""Of requests a minute, and of requests at once."""


class Grant(BaseModel):
    """What one key allows. All that is not said is allowed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tenant: str = Field(pattern=NAME, description="Whose requests they are.")
    name: str | None = Field(None, max_length=128, description="What people call the key.")
    classes: list[PriorityClass] | None = Field(None, min_length=1, description="Priority classes that it may ask for.")
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_OUTPUT_TOKENS, description="Longest answer that it may ask for, per choice. [tokens]"
    )
    requests_per_minute: int | None = Field(
        None, ge=1, le=MAX_RATE, description="Most requests that its tenant may send in a minute. [requests]"
    )
    max_concurrency: int | None = Field(
        None, ge=1, le=MAX_RATE, description="Most requests of its tenant that may wait and run at once. [requests]"
    )
    queue_share: float | None = Field(
        None, gt=0, le=1, description="Part of a class's bounds that its tenant may fill; none: `max_tenant_share`."
    )
    expires: int | None = Field(None, ge=0, description="When it ends, Unix time. [s]")

    def check_class(self, priority_class: str, tier: str | None = None) -> None:
        """ApiError 403 where the key does not allow requests of this class; `tier`: what the client called it."""
        if self.classes is None or priority_class in self.classes:
            return
        if tier is None:
            error = InvalidRequest("priority", priority_class, f"{', '.join(self.classes)} with this key")
        else:
            allowed = f"one that means the priority {' or '.join(self.classes)} with this key"
            error = InvalidRequest("service_tier", tier, allowed)
        raise ApiError(403, str(error), param=error.field, code="not_allowed")

    def check_lengths(self, parameters: RequestParameters) -> None:
        """InvalidRequest where a client says longer answers than the key allows."""
        most = self.max_tokens
        for field, value in (("max_tokens", parameters.max_tokens), ("min_tokens", parameters.min_tokens)):
            if most is not None and value is not None and value > most:
                raise InvalidRequest(field, value, f"at most {most} with this key")


Grants = Mapping[str, Grant]
"""By the SHA-256 of the key, in hexadecimal digits."""

_GRANTS = TypeAdapter(dict[str, Grant])


def new_key() -> str:
    """A key of 256 random bits, which nobody can guess and nothing but itself can tell."""
    return _PREFIX + secrets.token_urlsafe(_BYTES)


def digest(key: str) -> str:
    """What is kept of a key. One round without salt is enough for 256 random bits: nobody can try them out."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def read_grants(text: str | bytes) -> dict[str, Grant]:
    """A JSON object of SHA-256 → grant; InvalidRequest naming what is wrong."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest("api keys", f"{len(text)} bytes", "one JSON object") from None
    return check_grants(entries)


def grants_of_hash(flat: Sequence[bytes]) -> dict[str, Grant]:
    """From the hash in Redis, name, value, name, value; InvalidRequest naming what is wrong."""
    try:
        entries = {name.decode(): json.loads(value) for name, value in fields_of(flat).items()}
    except (ValueError, RecursionError):
        raise InvalidRequest("api keys", f"{len(flat) // 2} fields", "JSON objects") from None
    return check_grants(entries)


def check_grants(entries: Mapping[str, Any]) -> dict[str, Grant]:
    """Grants from plain values; InvalidRequest naming what is wrong."""
    try:
        grants = _GRANTS.validate_python(entries)
    except ValidationError as error:
        raise first_complaint(error, "api keys") from None
    for hashed in grants:
        if len(hashed) != 64 or set(hashed) - set("0123456789abcdef"):
            raise InvalidRequest("api keys", f"{len(hashed)} characters", "SHA-256 in 64 hexadecimal digits as names")
    return grants


def grant_text(grant: Grant) -> str:
    """A grant as it is kept."""
    return grant.model_dump_json(exclude_none=True)
