"""Finds the current master: sentinels are asked, and the server that they name must confirm it."""

import asyncio
from typing import Any, NamedTuple

from redis.exceptions import NoPermissionError, ResponseError

from orcastream.broker.address import RedisAddress
from orcastream.broker.errors import LinkLost
from orcastream.broker.link import Link

ASK_TIMEOUT_S = 1.0
"""How long one sentinel may take; there are others."""


class Word(NamedTuple):
    """A sentinel's answer: the master, and the number of the failover that promoted it. The highest number wins."""

    config_epoch: int
    host: str
    port: int

    @property
    def server(self) -> str:
        """The same as `Link.server`."""
        return f"{self.host}:{self.port}"


async def open_master(address: RedisAddress, **options: Any) -> tuple[Link, Word]:
    """Open a link to the master; return it with the sentinel's answer. `options` as for `Link.open`.

    All sentinels are asked. Of the servers that they name, newest failover first, the first that takes writes is
    chosen: a sentinel that was cut off may still name the old master. Raises LinkLost if there is none, ResponseError
    if that server refuses the handshake.
    """
    answers = await asyncio.gather(*(_ask(address, host, port) for host, port in address.hosts))
    reasons = [answer for answer in answers if isinstance(answer, str)]
    for word in sorted({answer for answer in answers if isinstance(answer, Word)}, reverse=True):
        try:
            return await _open_if_master(address, word.host, word.port, **options), word
        except LinkLost as error:
            reasons.append(str(error))
    raise LinkLost(f"no sentinel leads to a master named {address.service!r} ({'; '.join(reasons)})")


async def open_sentinel(address: RedisAddress, host: str, port: int) -> Link:
    """Open a link to one sentinel. Raises LinkLost, ResponseError."""
    options = {**(address.sentinel_options or {}), "host": host, "port": port}
    return await Link.open_with(options, reply_timeout_s=ASK_TIMEOUT_S)


async def word_of(sentinel: Link, service: str) -> Word:
    """Ask a sentinel for the master. Raises LinkLost if it cannot be asked or knows no such master."""
    commands = [("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service), ("SENTINEL", "MASTER", service)]
    server, state = await sentinel.call_many(commands)
    if server is None:
        raise LinkLost("the sentinel knows no master of that name")
    for reply in (server, state):
        if isinstance(reply, ResponseError):
            raise LinkLost(f"the sentinel refused: {reply}")
    fields = dict(zip(state[::2], state[1::2], strict=True))
    return Word(int(fields[b"config-epoch"]), server[0].decode(), int(server[1]))


async def _ask(address: RedisAddress, host: str, port: int) -> Word | str:
    """Return a sentinel's answer, or why there is none."""
    try:
        sentinel = await open_sentinel(address, host, port)
        try:
            return await word_of(sentinel, address.service)
        finally:
            await sentinel.close()
    except (LinkLost, ResponseError) as error:
        return f"{host}:{port}: {error}"


async def _open_if_master(address: RedisAddress, host: str, port: int, **options: Any) -> Link:
    link = await Link.open_with({**address.options, "host": host, "port": port}, **options)
    try:
        role = (await link.call("ROLE"))[0]
    except NoPermissionError:
        return link  # the first write will tell
    except BaseException:
        await link.close()
        raise
    if role != b"master":
        await link.close()
        raise LinkLost(f"{host}:{port} is no master but a {role.decode()}")
    return link
