"""Followers of several replies through one reader, and what is written for them."""

import asyncio
from collections.abc import Sequence

import pytest

from orcastream.broker.errors import UnknownRequest
from orcastream.broker.link import Link
from orcastream.broker.loss import Watch
from orcastream.broker.reader import ReplyReader
from orcastream.broker.reply_log import append_many
from orcastream.broker.scripts import Command
from orcastream.broker.subscription import Subscription
from orcastream.schemas.events import Output, encode_event
from tests.broker.following import Seen, expected, follow_until, tokens_seen
from tests.broker.scripted import Job, ScriptedWorker
from tests.patience import PATIENCE_S


async def blocked(link: Link) -> bytes:
    """Wait until the reader is blocked; return the server's id of its connection."""
    while True:
        for line in (await link.call("CLIENT", "LIST")).splitlines():
            words = line.split()
            if b"name=gateway-replies" in words and b"flags=b" in words:
                return words[0]


async def write(jobs: Sequence[Job], worker: ScriptedWorker) -> None:
    """Publish a token of each job in one write."""
    assert set(await append_many([(job.log, Output((worker.next_run(job),))) for job in jobs])) == {None}


def xadd(worker: ScriptedWorker, job: Job, at: int | None = None) -> Command:
    """Return the command that publishes a token of a job as the next event of its log, or as event `at`."""
    index = job.log.lend()[1] if at is None else at
    job.log.take_back(index + 1)
    event = encode_event(Output((worker.next_run(job),)), job.request.form)
    return ("XADD", job.log.key, f"{job.log.epoch}-{index}", *event)


class Followers:
    """Follows jobs' replies through one reader."""

    def __init__(self, reader: ReplyReader, jobs: Sequence[Job]) -> None:
        self._following = [(reader.subscribe(Watch(job.request.id, "default")), Seen()) for job in jobs]

    async def see(self, count: int) -> None:
        """Wait until all have so many tokens, each once and in its place."""
        async with asyncio.timeout(PATIENCE_S):
            for subscription, seen in self._following:
                await follow_until(subscription, seen, tokens_seen(count))
        assert [seen.tokens[0] for _, seen in self._following] == [expected(count)] * len(self._following)


async def given_up_as_no_stream(subscription: Subscription) -> None:
    """Wait until the reply is given up because its key is not a stream."""
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(UnknownRequest, match="not a stream"):
            await anext(subscription)
