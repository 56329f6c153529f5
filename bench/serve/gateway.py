"""Waiting for a gateway, and reading its served model."""

import asyncio
import time

import httpx

from orcastream.cli.errors import UserError

_POLL_S = 0.2


class GatewayUnavailable(UserError):
    """The gateway was not ready in time; the message names it and its last answer."""


async def served_model(url: str, *, api_key: str | None = None, patience_s: float = 60.0) -> str:
    """Return the gateway's model name once it is ready. Raises GatewayUnavailable after `patience_s`.

    An unusable URL is refused at once.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    give_up = time.monotonic() + patience_s
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
        while True:
            try:
                ready = await http.get("/health/ready")
                models = await http.get("/v1/models") if ready.is_success else ready
                if models.is_success:
                    return str(models.json()["data"][0]["id"])
                said = f"{models.status_code} {models.text}"
            except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:  # no patience helps
                allowed = f"an http:// or https:// URL ({error})"
                raise GatewayUnavailable(f"gateway: got {url!r}, allowed: {allowed}") from None
            except httpx.HTTPError as error:
                said = str(error) or type(error).__name__
            if time.monotonic() >= give_up:
                raise GatewayUnavailable(f"gateway: {url} is not ready: {said}")
            await asyncio.sleep(_POLL_S)
