"""Links to the master that sentinels name."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orcastream.broker.connect import connect
from orcastream.broker.errors import LinkLost
from orcastream.broker.link import Link
from orcastream.broker.master_watch import LOOK_S
from tests.patience import PATIENCE_S
from tests.redis_sentinels import Sentinels


@pytest.fixture
def sentinels(redis_binary: str, tmp_path: Path) -> Iterator[Sentinels]:
    site = Sentinels(redis_binary, tmp_path)
    site.start()
    yield site
    site.stop()


async def open_link(sentinels: Sentinels, **options: Any) -> Link:
    link = await connect(sentinels.url, **options)
    assert isinstance(link, Link)
    return link


async def test_a_link_leads_to_the_master_and_a_new_link_to_the_promoted_one(sentinels: Sentinels) -> None:
    master, replica = sentinels.servers
    link = await open_link(sentinels)
    assert link.server == f"127.0.0.1:{master.port}"
    await link.call("SET", "key", "1")
    sentinels.wait_replicated()
    sentinels.promote()
    sentinels.wait_promoted()
    await link.wait_lost()  # the sentinels cut the clients of a master that they make a replica
    link = await open_link(sentinels)
    assert link.server == f"127.0.0.1:{replica.port}"
    assert await link.call("GET", "key") == b"1"
    await link.close()


async def test_a_link_to_a_frozen_master_follows_the_sentinels_to_the_new_one(sentinels: Sentinels) -> None:
    master, replica = sentinels.servers
    idle, busy = await connect(sentinels.url), await connect(sentinels.url, reply_timeout_s=600)
    master.freeze()
    asking = asyncio.ensure_future(busy.call("SET", "key", "on the old one"))
    assert await idle.wait_lost() == f"the sentinels name 127.0.0.1:{replica.port} as the master"
    with pytest.raises(LinkLost, match="the sentinels name"):
        await asking
    master.thaw()
    link = await open_link(sentinels)
    assert link.server == f"127.0.0.1:{replica.port}"
    await link.call("SET", "key", "on the new one")
    sentinels.wait_promoted()
    await asyncio.sleep(2 * LOOK_S)  # a later message of the same failover leaves the link alone
    assert await link.call("GET", "key") == b"on the new one"
    await link.close()


async def test_a_link_follows_sentinels_that_forgot_the_failovers_of_before(sentinels: Sentinels) -> None:
    """Such as those of pods without volumes, all of them restarted: they number failovers from the start."""
    sentinels.promote()
    sentinels.wait_promoted()
    replica, master = sentinels.servers
    link = await open_link(sentinels, reply_timeout_s=600)
    assert link.server == f"127.0.0.1:{master.port}"
    await asyncio.to_thread(sentinels.replace_sentinels, 1)
    master.freeze()
    async with asyncio.timeout(PATIENCE_S):
        assert await link.wait_lost() == f"the sentinels name 127.0.0.1:{replica.port} as the master"
    master.thaw()


async def test_unreachable_or_ignorant_sentinels_are_skipped(sentinels: Sentinels) -> None:
    port = sentinels.ports[0]
    link = await connect(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/orca")
    await link.close()
    with pytest.raises(LinkLost, match=f"no sentinel leads to a master named 'other' .*{port}: the sentinel knows no"):
        await connect(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/other")


async def test_the_message_of_the_newer_failover_counts(sentinels: Sentinels) -> None:
    sentinels.freeze_sentinel()
    sentinels.promote()
    sentinels.wait_promoted(2)
    sentinels.servers[0].kill()
    link = await open_link(sentinels)
    sentinels.thaw_sentinel()  # for a moment it still names the old master
    assert await link.call("SET", "key", "1") == b"OK"
    sentinels.wait_promoted()
    assert link.server == f"127.0.0.1:{sentinels.servers[1].port}"
    assert await link.call("GET", "key") == b"1"
    await link.close()


async def test_a_replica_that_a_sentinel_still_names_as_master_is_not_used(sentinels: Sentinels) -> None:
    with sentinels.servers[0].client() as master:
        master.replicaof("127.0.0.1", 1)
    with pytest.raises(LinkLost, match="is no master but a slave"):
        await connect(sentinels.url)
