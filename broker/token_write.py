"""Token events of many reply logs in one write to each link: what a worker does after nearly every iteration."""

import asyncio
from typing import Any

from orcastream.broker.errors import BrokerError, LinkLost
from orcastream.broker.link import Link
from orcastream.broker.reply_log import ReplyLog


class TokenWrite:
    """Collects one token event of each of several logs, whose only choice goes on, and writes them together.

    The answer to an XADD with an explicit id is that id, so the bytes of all answers are known beforehand: while they
    come as expected, nothing is made of them. The rules are those of `append_many`.
    """

    def __init__(self) -> None:
        self._parts: dict[Link, _Part] = {}
        self._part: _Part | None = None

    def add(self, log: ReplyLog, position: int, tokens: list[int]) -> bool:
        """Append `tokens` of choice 0, the first at `position`; False where `append_many` has to say why it cannot."""
        begun = log.begin_tokens(position, tokens)
        if begun is None:
            return False
        part = self._part
        if part is None or log.link is not part.link:
            part = self._part = self._parts.setdefault(log.link, _Part(log.link))
        part.logs.append(log)
        part.commands.append(begun[0])
        part.ids.append(begun[1])
        return True

    def send(self) -> None:
        """Write what was added; to be followed by `failures`, or by `abandon` where nobody waits."""
        for part in self._parts.values():
            part.send()

    async def failures(self) -> dict[ReplyLog, BrokerError]:
        """What went wrong, by log; {} once all of it stands in the logs.

        A log whose write failed is dead, as ever. A caller that is cancelled knows of none.
        """
        failures: dict[ReplyLog, BrokerError] = {}
        try:
            for part in self._parts.values():
                failures |= await part.failures()
        except BaseException:
            self.abandon()
            raise
        return failures

    def abandon(self) -> None:
        """Nobody waits for what becomes of it: whether it stands in the logs is unknown for ever."""
        for part in self._parts.values():
            for log in part.logs:
                log.abandon()


class _Part:
    """What goes over one link."""

    __slots__ = ("commands", "ids", "link", "logs", "sent")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.logs: list[ReplyLog] = []
        self.commands: list[bytes] = []
        self.ids: list[bytes] = []
        self.sent: asyncio.Future[Any] | LinkLost | None = None

    def send(self) -> None:
        try:
            self.sent = self.link.send(b"".join(self.commands), len(self.logs), b"".join(self.ids))
        except LinkLost as lost:
            self.sent = lost

    async def failures(self) -> dict[ReplyLog, BrokerError]:
        """As that of the whole."""
        if self.sent is None:
            return {}
        try:
            replies = [self.sent] * len(self.logs) if isinstance(self.sent, LinkLost) else await self.sent
        except LinkLost as lost:
            replies = [lost] * len(self.logs)
        if replies is not None:
            settled = [(log, log.settle(reply)) for log, reply in zip(self.logs, replies, strict=True)]
            return {log: failure for log, failure in settled if failure is not None}
        for log in self.logs:
            log.written()
        return {}
