"""How a Redis URL is resolved."""

import re

import pytest
from redis.asyncio.connection import SSLConnection

from orcastream.broker.address import Mode, RedisAddress


def test_one_server() -> None:
    address = RedisAddress.parse("redis://user:w%2Frd@host:1/2")
    assert address.mode is Mode.SERVER
    assert address.options == {"host": "host", "port": 1, "db": 2, "username": "user", "password": "w/rd"}


def test_sentinels_of_a_service() -> None:
    address = RedisAddress.parse(
        "redis+sentinel://user:word@one,[::1]:2,three:3/my%20service/4?sentinel_password=other"
    )
    assert address.mode is Mode.SENTINEL
    assert address.hosts == (("one", 26379), ("::1", 2), ("three", 3))
    assert address.service == "my service"
    assert address.options == {"db": 4, "username": "user", "password": "word"}
    assert address.sentinel_options == {"password": "other"}


def test_sentinels_over_tls() -> None:
    address = RedisAddress.parse("rediss+sentinel://one/service?ssl_ca_certs=/ca.pem")
    tls = {"connection_class": SSLConnection, "ssl_ca_certs": "/ca.pem"}
    assert address.options == tls
    assert address.sentinel_options == tls


def test_nodes_of_a_cluster() -> None:
    address = RedisAddress.parse("rediss+cluster://user:word@one,[::1]:2/0?ssl_ca_certs=/ca.pem")
    assert address.mode is Mode.CLUSTER
    assert address.hosts == (("one", 6379), ("::1", 2))
    tls = {"connection_class": SSLConnection, "ssl_ca_certs": "/ca.pem"}
    assert address.options == {"username": "user", "password": "word", **tls}


@pytest.mark.parametrize(
    "url", ["sentinel://one:26379/service", "redis-cluster://one", "redis+other://one", "one:6379"]
)
def test_an_unknown_scheme_is_answered_with_all_that_exist(url: str) -> None:
    with pytest.raises(ValueError, match=re.escape("redis+sentinel://") + ".*" + re.escape("redis+cluster://")):
        RedisAddress.parse(url)
