"""The client for asyncio: posts requests over HTTP or Redis, and follows their answers through failures."""

from collections.abc import Sequence
from typing import Self, Unpack
from weakref import WeakSet

from orcastream.client.gateways import Gateways
from orcastream.client.redis_transport import RedisTransport
from orcastream.client.reply import AsyncReply
from orcastream.client.request import Asked, Parameters, Prompt, check_asked, checked_parameters
from orcastream.client.transport import Transport
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import DEFAULT_NAMESPACE, DEFAULT_TENANT, PriorityClass
from orcastream.text.tokenizer import Tokenizer

DEFAULT_RETENTION_S = 600.0
_HTTP = ("http://", "https://")
_ALLOWED = "http:// or https:// URLs of gateways, or one redis://, rediss://, unix:// or redis+sentinel:// URL"


class AsyncClient:
    """`async with AsyncClient(urls, model) as client: ...`; any number of concurrent requests.

    `urls`: equivalent gateways, or Redis. `patience_s`: how long the service may be unavailable before a request fails
    with Unavailable (or QueueFull). `api_key` is for gateways. Over Redis: `namespace`, `retention_s` and `queue_lanes`
    as the service has them, `tenant` that the requests belong to, `tokenizer` to post and to get text. Raises
    InvalidRequest naming the wrong parameter.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        model: str,
        *,
        patience_s: float = 60.0,
        api_key: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        tenant: str = DEFAULT_TENANT,
        tokenizer: Tokenizer | None = None,
        retention_s: float = DEFAULT_RETENTION_S,
        queue_lanes: int = 1,
    ) -> None:
        all_urls = [urls] if isinstance(urls, str) else list(urls)
        self._transport: Transport
        if all_urls and all(url.lower().startswith(_HTTP) for url in all_urls):
            names = {"namespace": namespace != DEFAULT_NAMESPACE, "tenant": tenant != DEFAULT_TENANT}
            rest = {"tokenizer": tokenizer is not None, "retention_s": retention_s != DEFAULT_RETENTION_S}
            _check_unused({**names, **rest, "queue_lanes": queue_lanes != 1}, "Redis")
            self._transport = Gateways(all_urls, model, api_key=api_key, patience_s=patience_s)
        elif len(all_urls) == 1:
            _check_unused({"api_key": api_key is not None}, "gateways")
            self._transport = RedisTransport(
                all_urls[0],
                model,
                namespace=namespace,
                tenant=tenant,
                tokenizer=tokenizer,
                patience_s=patience_s,
                retention_s=retention_s,
                queue_lanes=queue_lanes,
            )
        else:
            raise InvalidRequest("urls", f"{len(all_urls)} URLs", _ALLOWED)
        self._replies: WeakSet[AsyncReply] = WeakSet()

    def generate(
        self,
        prompt: Prompt,
        *,
        request_id: str | None = None,
        priority: PriorityClass = "normal",
        timeout_s: float = 600.0,
        durable: bool = False,
        **parameters: Unpack[Parameters],
    ) -> AsyncReply:
        """Return a reply to iterate over, or to get the whole answer from; its first use posts the request.

        `request_id`: your own id, which makes posting idempotent over all clients and their restarts. `timeout_s`: time
        until the request expires. `durable`: accepted only once Redis has it on disk. Raises InvalidRequest.
        """
        check_asked(prompt, priority, timeout_s)
        checked = checked_parameters({**parameters})
        own_id = self._transport.request_id(prompt, request_id)
        reply = AsyncReply(self._transport, Asked(own_id, prompt, checked, priority, timeout_s, durable))
        self._replies.add(reply)
        return reply

    async def aclose(self) -> None:
        """Stop reading all replies, post nothing more, and close all connections."""
        for reply in list(self._replies):
            await reply.aclose()
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _check_unused(given: dict[str, bool], where: str) -> None:
    """Raise InvalidRequest for a parameter that has no meaning with these URLs."""
    for name, is_given in given.items():
        if is_given:
            raise InvalidRequest(name, "a value", f"with the URL of {where}")
