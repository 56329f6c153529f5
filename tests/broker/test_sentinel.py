"""Links to the master that sentinels name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.connect import connect
from broker.errors import LinkLost
from tests.redis_sentinels import Sentinels


@pytest.fixture
def sentinels(redis_binary: str, tmp_path: Path) -> Iterator[Sentinels]:
    site = Sentinels(redis_binary, tmp_path)
    site.start()
    yield site
    site.stop()


async def test_a_link_leads_to_the_master_and_after_a_promotion_a_new_one_to_the_new_one(sentinels: Sentinels) -> None:
    master, replica = sentinels.servers
    link = await connect(sentinels.url)
    assert link.server == f"127.0.0.1:{master.port}"
    await link.call("SET", "key", "1")
    sentinels.wait_replicated()
    sentinels.promote()
    sentinels.wait_promoted()
    await link.wait_lost()  # the sentinels cut the clients of a master that they make a replica
    link = await connect(sentinels.url)
    assert link.server == f"127.0.0.1:{replica.port}"
    assert await link.call("GET", "key") == b"1"
    await link.close()


async def test_sentinels_that_are_away_or_know_nothing_are_passed_over(sentinels: Sentinels) -> None:
    port = sentinels.ports[0]
    link = await connect(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/orca")
    await link.close()
    with pytest.raises(LinkLost, match=f"no sentinel leads to a master named 'other' .*{port}: the sentinel knows no"):
        await connect(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/other")


async def test_a_replica_that_a_sentinel_still_takes_for_the_master_is_not_used(sentinels: Sentinels) -> None:
    with sentinels.servers[0].client() as master:
        master.replicaof("127.0.0.1", 1)
    with pytest.raises(LinkLost, match="is no master but a slave"):
        await connect(sentinels.url)
