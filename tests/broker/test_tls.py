"""Connections to a real server over TLS, with certificates on both sides."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orcastream.broker.connect import connect
from orcastream.broker.errors import LinkLost
from orcastream.broker.link import Link
from orcastream.broker.settings import BrokerSettings
from tests.certificates import Authority, Certificate
from tests.ports import free_port
from tests.redis_server import RedisServer


class TlsSite:
    """A server that requires a certificate of its authority, and the files of a client."""

    def __init__(self, own_redis: Callable[..., RedisServer], directory: Path) -> None:
        self.authority = Authority(directory)
        server, self.client = self.authority.sign("server"), self.authority.sign("client")
        port = free_port()
        files = (
            "--tls-cert-file",
            server.cert,
            "--tls-key-file",
            server.key,
            "--tls-ca-cert-file",
            self.authority.cert,
        )
        options = ("--tls-port", str(port), "--tls-auth-clients", "yes", *map(str, files))
        try:
            self.server = own_redis(options=list(map(str, options)))
        except RuntimeError:
            pytest.skip("this redis-server was built without TLS")
        self.url = f"rediss://localhost:{port}/0"

    def settings(self, client: Certificate | None = None, **changes: Path) -> BrokerSettings:
        """Return a process's settings: the authority and `client`, or the right client."""
        client = client or self.client
        files = {"redis_ca_file": self.authority.cert, "redis_cert_file": client.cert, "redis_key_file": client.key}
        settings: dict[str, Any] = {"redis_url": self.url, **files, **changes}
        return BrokerSettings(**settings)


@pytest.fixture
def site(own_redis: Callable[..., RedisServer], tmp_path: Path) -> TlsSite:
    return TlsSite(own_redis, tmp_path / "certificates")


async def test_both_sides_present_their_certificates(site: TlsSite) -> None:
    url = site.settings().connection_url
    assert url is not None
    link = await connect(url, name="tls")
    assert isinstance(link, Link)
    assert await link.call("PING") == b"PONG"
    assert link.server == site.url.removeprefix("rediss://").removesuffix("/0")
    await link.close()


async def test_a_server_of_another_authority_is_rejected(site: TlsSite, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    with pytest.raises(LinkLost, match="certificate verify failed"):
        await connect(site.settings(redis_ca_file=other.cert).connection_url or "")


async def test_a_client_without_a_certificate_of_the_authority_is_refused(site: TlsSite, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "other").sign("stranger")
    with pytest.raises(LinkLost):
        await connect(site.settings(stranger).connection_url or "")
    with pytest.raises(LinkLost):
        await connect(BrokerSettings(redis_url=site.url, redis_ca_file=site.authority.cert).connection_url or "")


async def test_a_server_without_tls_is_rejected(site: TlsSite) -> None:
    with pytest.raises(LinkLost):
        await connect(f"rediss://127.0.0.1:{site.server.port}/0")


async def test_new_files_are_read_at_the_next_connection(site: TlsSite) -> None:
    url = site.settings().connection_url or ""
    renewed = site.authority.sign("renewed")
    renewed.cert.replace(site.client.cert)
    renewed.key.replace(site.client.key)
    link = await connect(url)
    assert await link.call("PING") == b"PONG"
    await link.close()
