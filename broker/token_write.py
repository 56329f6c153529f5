"""Token events of many reply logs in one write to their link: what a worker does after nearly every iteration."""

import asyncio
from typing import Any

from broker.errors import BrokerError, LinkLost
from broker.link import Link
from broker.reply_log import ReplyLog


class TokenWrite:
    """Collects one token event of each of several logs, whose only choice goes on, and writes them together.

    The answer to an XADD with an explicit id is that id, so the bytes of all answers are known beforehand: while they
    come as expected, nothing is made of them. The rules are those of `append_many`.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._logs: list[ReplyLog] = []
        self._commands: list[bytes] = []
        self._ids: list[bytes] = []
        self._sent: asyncio.Future[Any] | LinkLost | None = None

    def add(self, log: ReplyLog, position: int, tokens: list[int]) -> bool:
        """Append `tokens` of choice 0, the first at `position`; False where `append_many` has to say why it cannot."""
        if log.link is not self._link or (begun := log.begin_tokens(position, tokens)) is None:
            return False
        self._logs.append(log)
        self._commands.append(begun[0])
        self._ids.append(begun[1])
        return True

    def send(self) -> None:
        """Write what was added; to be followed by `failures`, or by `abandon` where nobody waits."""
        if not self._logs:
            return
        try:
            self._sent = self._link.send(b"".join(self._commands), len(self._logs), b"".join(self._ids))
        except LinkLost as lost:
            self._sent = lost

    async def failures(self) -> list[BrokerError | None]:
        """[] once all of it stands in the logs; else what went wrong with each, in order, and None where nothing did.

        A log whose write failed is dead, as ever. A caller that is cancelled knows of none.
        """
        if self._sent is None:
            return []
        try:
            replies = [self._sent] * len(self._logs) if isinstance(self._sent, LinkLost) else await self._sent
        except LinkLost as lost:
            replies = [lost] * len(self._logs)
        except BaseException:
            self.abandon()
            raise
        if replies is not None:
            return [log.settle(reply) for log, reply in zip(self._logs, replies, strict=True)]
        for log in self._logs:
            log.written()
        return []

    def abandon(self) -> None:
        """Nobody waits for what becomes of it: whether it stands in the logs is unknown for ever."""
        for log in self._logs:
            log.abandon()
