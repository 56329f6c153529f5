"""A conversation with a model: its turns so far, as many as fit into the model's context."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from orcastream.client import AsyncClient, AsyncReply, ClientError, Message, Parameters, Refused, Usage

_CONTEXT_FULL: Final = "context_length_exceeded"
_CANCEL_S: Final = 2.0
"""How long canceling a request at the gateway may take."""


@dataclass
class AnswerStats:
    """Timings and usage of one answer. Times are readings of a monotonic clock in seconds."""

    asked_s: float
    first_s: float | None = None
    last_s: float | None = None
    usage: Usage | None = None

    def took(self, piece: str) -> None:
        """Something came."""
        if piece:
            self.last_s = time.monotonic()
            self.first_s = self.first_s or self.last_s


class Conversation:
    """Turns of question and answer. Once the context is full, the oldest are dropped and `tell` is called."""

    def __init__(
        self,
        client: AsyncClient,
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        tell: Callable[[str], None],
    ) -> None:
        self._client = client
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._tell = tell
        self._turns: list[list[Message]] = []
        """Each a question, and its answer if there is one."""
        self._is_full = False
        self.system = system
        """The system message, sent before all turns."""
        self.answers: list[AnswerStats] = []
        """One entry per question so far."""

    @property
    def num_turns(self) -> int:
        """Number of questions still in the model's context."""
        return len(self._turns)

    def clear(self) -> None:
        """Start over; the system message stays."""
        self._turns.clear()
        self._is_full = False

    async def ask(self, question: str, show: Callable[[str], None]) -> None:
        """Show the answer's pieces as they arrive, and remember question and answer, even when cut short.

        Cancellation cancels the request too. Raises ClientError.
        """
        if self._is_full:
            self._forget(len(self._turns) // 2)
        turn: list[Message] = [{"role": "user", "content": question}]
        self._turns.append(turn)
        stats = AnswerStats(time.monotonic())
        self.answers.append(stats)
        pieces: list[str] = []

        def came(piece: str) -> None:
            stats.took(piece)
            pieces.append(piece)
            show(piece)

        try:
            await self._stream(stats, came)
        finally:
            if pieces:
                turn.append({"role": "assistant", "content": "".join(pieces)})
            else:
                self._turns.pop()

    async def _stream(self, stats: AnswerStats, came: Callable[[str], None]) -> None:
        reply = await self._accepted()
        try:
            async for delta in reply:
                came(delta.text)
            result = await reply.result()
        except asyncio.CancelledError:
            await _cancel(reply)
            raise
        finally:
            await reply.aclose()
        stats.usage = result.usage
        self._is_full = self._max_tokens is None and result.choices[0].finish_reason == "length"
        if self._is_full:
            self._tell("the context is full, and so the answer ends here")

    async def _accepted(self) -> AsyncReply:
        """Return the reply to the turns that fit, once the gateway has accepted the request."""
        forgotten = 1
        while True:
            reply = self._reply()
            try:
                await reply.accepted()
                return reply
            except asyncio.CancelledError:
                await _cancel(reply)  # the gateway may have it already
                raise
            except Refused as error:
                if error.code != _CONTEXT_FULL or self.num_turns == 1:
                    raise
            self._forget(forgotten)
            forgotten *= 2

    def _reply(self) -> AsyncReply:
        first: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        messages = first + [message for turn in self._turns for message in turn]
        parameters: Parameters = {"temperature": self._temperature}
        if self._max_tokens is not None:
            parameters["max_tokens"] = self._max_tokens
        return self._client.generate(messages, **parameters)

    def _forget(self, count: int) -> None:
        """Drop the oldest turns: at least one, and never the last."""
        count = max(1, min(count, len(self._turns) - 1))
        del self._turns[:count]
        self._is_full = False
        what = (
            "the oldest question and its answer are" if count == 1 else f"the oldest {count} questions and answers are"
        )
        self._tell(f"the context is full: {what} forgotten")


async def _cancel(reply: AsyncReply) -> None:
    with suppress(ClientError, TimeoutError):
        async with asyncio.timeout(_CANCEL_S):
            await reply.cancel()
