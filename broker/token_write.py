"""Token events of many reply logs in one write to each link: what a worker does after nearly every iteration."""

import asyncio
from typing import Any

from orcastream.broker.errors import BrokerError, LinkLost
from orcastream.broker.link import Link
from orcastream.broker.reply_log import ReplyLog, written


class TokenWrite:
    """Collects one token event of each of several logs, whose only choice goes on, and writes them together.

    The answer to an XADD with an explicit id is that id, so the bytes of all answers are known beforehand: while they
    come as expected, nothing is made of them. The rules are those of `append_many`.
    """

    def __init__(self) -> None:
        self._parts: dict[Link, _Part] = {}
        self._part: _Part | None = None

    def add(self, log: ReplyLog, tokens: list[int], begin: int) -> bool:
        """Append `tokens[begin:]` of choice 0; False where `append_many` has to say why that cannot be."""
        part = self._part
        if part is None or log.link is not part.link:
            part = self._part = self._parts.setdefault(log.link, _Part(log.link))
        if not log.begin_tokens(part.commands, part.ids, tokens, begin):
            return False
        part.logs.append(log)
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
                if part.logs:
                    part.settle(await part.replies(), failures)
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
        self.sent: asyncio.Future[Any] | LinkLost = LinkLost("not sent")

    def send(self) -> None:
        if not self.logs:
            return
        try:
            self.sent = self.link.send(b"".join(self.commands), len(self.logs), b"".join(self.ids))
        except LinkLost as lost:
            self.sent = lost

    async def replies(self) -> list[Any] | None:
        """None where all of them are the ids that were asked for."""
        try:
            return [self.sent] * len(self.logs) if isinstance(self.sent, LinkLost) else await self.sent
        except LinkLost as lost:
            return [lost] * len(self.logs)

    def settle(self, replies: list[Any] | None, failures: dict[ReplyLog, BrokerError]) -> None:
        """Take the replies to what was sent; add to `failures` those that they mean."""
        if replies is None:
            written(self.logs)
            return
        for log, reply in zip(self.logs, replies, strict=True):
            if (failure := log.settle(reply)) is not None:
                failures[log] = failure
