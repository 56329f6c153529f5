"""The models that a gateway serves."""

import httpx

from orcastream.client.attempts import Passing, refusal, unreachable
from orcastream.client.errors import Refused
from orcastream.client.gateways import checked_url


async def served_models(url: str, *, api_key: str | None = None, timeout_s: float = 10.0) -> list[str]:
    """Return their names, in the gateway's order.

    Raises Unavailable, Refused, and InvalidRequest for an invalid URL.
    """
    base = checked_url(url)
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        async with httpx.AsyncClient(headers=headers, timeout=timeout_s) as http:
            response = await http.get(f"{base}/v1/models")
            if response.status_code != httpx.codes.OK:
                raise refusal(response, "")
            return [str(model["id"]) for model in response.json()["data"]]
    except httpx.TransportError as error:
        raise unreachable(error, "").error from None
    except Passing as passing:
        raise passing.error from None
    except (ValueError, LookupError, TypeError):
        raise Refused("The server at this URL is not a gateway.", code="no_gateway") from None
