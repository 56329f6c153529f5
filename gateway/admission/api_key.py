"""One API key: how it is made, what is stored of it, and what it allows."""

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
"""Requests a minute, and also concurrent requests."""


class Grant(BaseModel):
    """What one key allows. Unset fields restrict nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tenant: str = Field(pattern=NAME, description="Tenant that the requests belong to.")
    name: str | None = Field(None, max_length=128, description="Human-readable name of the key.")
    classes: list[PriorityClass] | None = Field(
        None, min_length=1, description="Priority classes that the key may ask for."
    )
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_OUTPUT_TOKENS, description="Longest answer that the key may ask for, per choice. [tokens]"
    )
    requests_per_minute: int | None = Field(
        None,
        ge=1,
        le=MAX_RATE,
        description="Maximum number of requests that its tenant may send in a minute. [requests]",
    )
    max_concurrency: int | None = Field(
        None, ge=1, le=MAX_RATE, description="Maximum number of its tenant's waiting and running requests. [requests]"
    )
    queue_share: float | None = Field(
        None, gt=0, le=1, description="Part of a class's bounds that its tenant may use; none: `max_tenant_share`."
    )
    expires: int | None = Field(None, ge=0, description="When the key expires, in Unix time. [s]")

    def check_class(self, priority_class: str, tier: str | None = None) -> None:
        """Raise ApiError 403 if the key does not allow this class; `tier` is the client's name for the class."""
        if self.classes is None or priority_class in self.classes:
            return
        if tier is None:
            error = InvalidRequest("priority", priority_class, f"{', '.join(self.classes)} with this key")
        else:
            allowed = f"one that means the priority {' or '.join(self.classes)} with this key"
            error = InvalidRequest("service_tier", tier, allowed)
        raise ApiError(403, str(error), param=error.field, code="not_allowed")

    def check_lengths(self, parameters: RequestParameters) -> None:
        """Raise InvalidRequest if the client explicitly asks for longer answers than the key allows."""
        most = self.max_tokens
        for field, value in (("max_tokens", parameters.max_tokens), ("min_tokens", parameters.min_tokens)):
            if most is not None and value is not None and value > most:
                raise InvalidRequest(field, value, f"at most {most} with this key")


Grants = Mapping[str, Grant]
"""Grants by the SHA-256 of the key, in hexadecimal digits."""

_GRANTS = TypeAdapter(dict[str, Grant])


def new_key() -> str:
    """Return a new key of 256 random bits: nobody can guess it, and nothing but the key itself reveals it."""
    return _PREFIX + secrets.token_urlsafe(_BYTES)


def digest(key: str) -> str:
    """Return the stored form of a key. 256 random bits cannot be tried out, so one round without salt is enough."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def read_grants(text: str | bytes) -> dict[str, Grant]:
    """Parse a JSON object of SHA-256 → grant. Raises InvalidRequest naming the defect."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest("api keys", f"{len(text)} bytes", "one JSON object") from None
    return check_grants(entries)


def grants_of_hash(flat: Sequence[bytes]) -> dict[str, Grant]:
    """Parse the flat hash from Redis: name, value, name, value. Raises InvalidRequest naming the defect."""
    try:
        entries = {name.decode(): json.loads(value) for name, value in fields_of(flat).items()}
    except (ValueError, RecursionError):
        raise InvalidRequest("api keys", f"{len(flat) // 2} fields", "JSON objects") from None
    return check_grants(entries)


def check_grants(entries: Mapping[str, Any]) -> dict[str, Grant]:
    """Make grants from plain values. Raises InvalidRequest naming the defect."""
    try:
        grants = _GRANTS.validate_python(entries)
    except ValidationError as error:
        raise first_complaint(error, "api keys") from None
    for hashed in grants:
        if len(hashed) != 64 or set(hashed) - set("0123456789abcdef"):
            raise InvalidRequest("api keys", f"{len(hashed)} characters", "SHA-256 in 64 hexadecimal digits as names")
    return grants


def grant_text(grant: Grant) -> str:
    """Return a grant in its stored form."""
    return grant.model_dump_json(exclude_none=True)
