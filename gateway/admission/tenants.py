"""Which tenant a request comes from and what it may ask for, by its API key."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Final

from pydantic import SecretStr
from redis.exceptions import ResponseError
from starlette.datastructures import Headers

from orcastream.broker.errors import BrokerError
from orcastream.gateway.admission.api_key import Grant, Grants, digest
from orcastream.gateway.admission.key_source import KeySource
from orcastream.gateway.admission.single_header import single_header
from orcastream.gateway.errors import unauthorized, unavailable
from orcastream.gateway.log import log_event
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import DEFAULT_TENANT

_ANYBODY: Final = Grant(tenant=DEFAULT_TENANT, queue_share=1)
"""Without keys all requests belong to one tenant, which may use the whole queue."""


class Tenants:
    """The grants, looked up by the hashes of keys, so that the look-up's time reveals nothing about a key.

    Without `source` and without keys in the settings, no key is required. With a source, nobody is admitted before its
    first successful read; while it is unreadable later, its last content applies.
    """

    def __init__(self, api_keys: Mapping[SecretStr, str], source: KeySource | None = None) -> None:
        self._source = source
        self._grants: Grants | None = None
        if source is None:
            self._grants = {digest(key.get_secret_value()): Grant(tenant=name) for key, name in api_keys.items()}

    def known(self) -> Grants:
        """Return the grants. Raises ApiError 503 before the first successful read."""
        if self._grants is None:
            raise unavailable("The API keys could not be read yet.", "api_keys_unknown")
        return self._grants

    def of(self, headers: Headers) -> Grant:
        """Return what the sender of a request may do.

        Raises ApiError 401 if a key is required and this one is not valid, InvalidRequest if there are several.
        """
        grants = self.known()
        if not grants and self._source is None:
            return _ANYBODY
        scheme, _, key = (single_header(headers, "Authorization") or "").partition(" ")
        grant = grants.get(digest(key.strip()))
        if scheme.lower() != "bearer" or grant is None or (grant.expires is not None and time.time() >= grant.expires):
            raise unauthorized()
        return grant

    async def keep_fresh(self, pause_s: float) -> None:
        """Poll the source for changes, forever."""
        while self._source is not None:
            await self._look(self._source)
            await asyncio.sleep(pause_s)

    async def _look(self, source: KeySource) -> None:
        try:
            changed = await source.changed()
        except (InvalidRequest, OSError, BrokerError, ResponseError) as error:
            log_event("API keys cannot be read", level=logging.WARNING, why=error)
            return
        if changed is not None:
            self._grants = changed
            log_event("API keys read", level=logging.INFO, keys=len(changed))
