"""Asks for streamed completions at next to no cost, so that who asks does not slow down who answers.

HTTP/1.1 as far as one gateway needs it: a connection for each request, and of an answer no more is read than when its
first piece came, and whether it is whole.
"""

import asyncio
import json
import time

from orcastream.bench.figures.outcome import Outcome
from orcastream.bench.workloads import SampleRequest

_DONE = b"data: [DONE]"
_ERROR = b'data: {"error"'
_CHUNK_BYTES = 1 << 16
_MARGIN_S = 30.0
"""After its deadline a request is waited for no longer than this."""


class LeanClient:
    """Asks the gateway on a port of this machine; any number of requests at once."""

    def __init__(self, port: int, model: str, deadline_s: float) -> None:
        self._port = port
        self._model = model
        self._deadline_s = deadline_s

    async def ask(self, request: SampleRequest, due_s: float) -> Outcome:
        """The outcome, whatever it is: errors are in it. `due_s`: when the request arrives, by `time.monotonic()`."""
        outcome, sent_s = Outcome(request, due_s), time.monotonic()
        try:
            async with asyncio.timeout(self._deadline_s + _MARGIN_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    writer.write(self._message(request))
                    await self._read(reader, outcome, sent_s)
                finally:
                    writer.close()
        except TimeoutError:
            outcome.error = "no end in time"
        except (OSError, asyncio.IncompleteReadError) as error:
            outcome.error = f"connection: {type(error).__name__}"
        return outcome

    def _message(self, request: SampleRequest) -> bytes:
        body = {
            "model": self._model,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "timeout": self._deadline_s,
        }
        raw = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(raw)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + raw

    async def _read(self, reader: asyncio.StreamReader, outcome: Outcome, sent_s: float) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status != 200:
            rest = await reader.read(_CHUNK_BYTES)
            outcome.error = f"{status} {json.loads(rest)['error']['code']}"
            outcome.refused_after_s = time.monotonic() - sent_s
            return
        tail = b""
        while piece := await reader.read(_CHUNK_BYTES):
            if not outcome.pieces_s:
                outcome.pieces_s.append(time.monotonic())
            seen = tail + piece
            if _ERROR in seen:
                outcome.error = f"in the stream: {_code(seen)}"
            if _DONE in seen:
                outcome.ended_s = time.monotonic()
            tail = seen[-len(_ERROR) :]
        if outcome.ended_s is None and outcome.error is None:
            outcome.error = "cut off"


def _code(seen: bytes) -> str:
    return seen.partition(b'"code":')[2].partition(b"}")[0].strip(b' "').decode(errors="replace") or "unknown"
