"""Clients that read slowly, and clients that stop, as a connection's write buffers show them."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from orcastream.gateway.http.unread import Unread

TIMEOUT_S = 12_345.0
ANSWER_BYTES = 32 << 20
READ_BYTES = 64 << 10


async def test_only_a_client_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    call_later, due = loop.call_later, list[Callable[[], Any]]()

    def later(delay_s: float, callback: Callable[..., Any], *arguments: Any) -> asyncio.TimerHandle:
        if delay_s == TIMEOUT_S:
            due.append(lambda: callback(*arguments))
        return call_later(delay_s, callback, *arguments)

    monkeypatch.setattr(loop, "call_later", later)
    accepted: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
    server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), "127.0.0.1")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        transport: Any = (await accepted).transport
        transport.write(bytes(ANSWER_BYTES))
        unread = Unread(transport, TIMEOUT_S)
        unread.begin()
        for _ in range(20):
            left_bytes = READ_BYTES
            while left_bytes:
                left_bytes -= len(await loop.sock_recv(client, left_bytes))
            due.pop()()
            assert not transport.is_closing()
        while due:  # what the client's side still has room for may have moved there
            due.pop()()
        assert transport.is_closing()
        unread.end()
    server.close()
    await server.wait_closed()
