"""Waiting for a gateway, and reading its served model."""

import asyncio
import time
from collections.abc import Callable

import httpx

from orcastream.cli.errors import UserError

_POLL_S = 0.2
_KEY_REFUSED = (401, 403)
_LONGEST_ANSWER = 200


class GatewayUnavailable(UserError):
    """The gateway was not ready in time; the message names it and its last answer."""


async def served_model(
    url: str,
    *,
    api_key: str | None = None,
    patience_s: float = 60.0,
    on_wait: Callable[[str], None] | None = None,
) -> str:
    """Return the gateway's model name once it is ready. Raises GatewayUnavailable after `patience_s`.

    A URL that no gateway can have, a refused key, and a list without a model are refused at once. `on_wait` is called
    once, with the reason, if the gateway is not ready at first.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    give_up = time.monotonic() + patience_s
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
        while True:
            try:
                ready = await http.get("/health/ready")
                models = await http.get("/v1/models") if ready.is_success else ready
                if models.is_success:
                    return _first_model(models)
                said = _said(models)
                if models.status_code in _KEY_REFUSED:
                    raise GatewayUnavailable(f"gateway: {url} refuses the API key: {said}")
            except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
                allowed = f"an http:// or https:// URL ({error})"
                raise GatewayUnavailable(f"gateway: got {url!r}, allowed: {allowed}") from None
            except httpx.HTTPError as error:
                said = str(error) or type(error).__name__
            if time.monotonic() >= give_up:
                raise GatewayUnavailable(f"gateway: {url} is not ready: {said}")
            if on_wait is not None:
                on_wait(said)
                on_wait = None
            await asyncio.sleep(_POLL_S)


def _first_model(models: httpx.Response) -> str:
    try:
        return str(models.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        allowed = "OpenAI's list of models, with at least one"
        raise GatewayUnavailable(f"gateway: {models.url}: got {_said(models)}, allowed: {allowed}") from None


def _said(answer: httpx.Response) -> str:
    return f"{answer.status_code} {answer.text[:_LONGEST_ANSWER]}"
