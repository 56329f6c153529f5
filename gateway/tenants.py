"""Which tenant a request comes from, told by its API key."""

import hashlib
from collections.abc import Mapping

from pydantic import SecretStr

from gateway.errors import unauthorized

DEFAULT_TENANT = "default"


class Tenants:
    """API keys, kept and looked up by their hashes, so that a look-up's time tells nothing about a key."""

    def __init__(self, api_keys: Mapping[SecretStr, str]) -> None:
        self._tenants = {_digest(key.get_secret_value()): tenant for key, tenant in api_keys.items()}

    def of(self, headers: Mapping[str, str]) -> str:
        """The tenant of a request; ApiError 401 where keys are asked for and this one is none."""
        if not self._tenants:
            return DEFAULT_TENANT
        scheme, _, key = headers.get("authorization", "").partition(" ")
        tenant = self._tenants.get(_digest(key.strip()))
        if scheme.lower() != "bearer" or tenant is None:
            raise unauthorized()
        return tenant


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
