"""The host names that a gateway answers to."""

import asyncio

import pytest

from orcastream.gateway.http.host_check import hosts_for
from orcastream.gateway.settings import GatewaySettings
from tests.gateway.conftest import Served, Stage

REBOUND = "rebound.example.com:8000"
"""A name of somebody's that leads here: pages of that name are of one origin with the gateway."""


async def status(served: Served, host: str, path: str = "/v1/models") -> int:
    return (await served.http().get(path, headers={"Host": host})).status_code


@pytest.fixture
async def served(stage: Stage) -> Served:
    return await stage.gateway()


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "LOCALHOST.", "app.localhost:1", "127.0.0.1:80", "[::1]:8000", "10.0.0.7"]
)
async def test_localhost_is_answered(served: Served, host: str) -> None:
    assert await status(served, host) == 200


@pytest.mark.parametrize(
    "host", [REBOUND, "localhost.example.com", "127.0.0.1.example.com", "", "[", "a b", "localhost@example.com:80"]
)
async def test_a_local_gateway_refuses_other_names(served: Served, host: str) -> None:
    answer = await served.http().get("/v1/models", headers={"Host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "unknown_host")
    assert "allowed_hosts" in answer.json()["error"]["message"]


async def test_a_refused_request_has_no_effect(stage: Stage, served: Served) -> None:
    worker = await stage.worker()
    body = {"model": "tiny", "prompt": "x"}
    assert (await served.http().post("/v1/completions", json=body, headers={"Host": REBOUND})).status_code == 421
    assert worker.requests == []


async def test_names_can_be_allowed(stage: Stage) -> None:
    served = await stage.gateway(allowed_hosts=["api.example.com", "*.example.org"])
    for host in ("api.example.com", "API.example.com:443", "a.example.org", "a.b.example.org", "localhost", "[::1]"):
        assert await status(served, host) == 200
    for host in ("example.com", "x.api.example.com", "example.org", "xexample.org", REBOUND):
        assert await status(served, host) == 421
    assert await status(await stage.gateway(allowed_hosts=["*"]), REBOUND) == 200


async def test_two_host_headers_are_refused(served: Served) -> None:
    for hosts in ("", "Host: localhost\r\nHost: localhost\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
        writer.write(f"GET /v1/models HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        assert answer.startswith("HTTP/1.1 400 ")
        assert "invalid_host" in answer


async def test_nothing_is_redirected_to_an_arbitrary_host(served: Served) -> None:
    answer = await served.http().get("/v1/models/", headers={"Host": "127.0.0.1"})
    assert answer.status_code == 404
    assert (await served.http().post("/v1/completions/", json={})).status_code == 404


def test_a_server_behind_any_name_answers_to_all() -> None:
    for listens_on, allowed in (
        ("0.0.0.0", ("*",)),
        ("::", ("*",)),
        ("10.0.0.7", ("*",)),
        ("::1", None),
        ("localhost", None),
    ):
        assert hosts_for((), listens_on) == (allowed or hosts_for((), "127.0.0.1"))
    assert hosts_for(("a",), "0.0.0.0") == ("a",)


@pytest.mark.parametrize("name", ["", "a.example.com:80", "http://a", "*.", "a*", "**"])
def test_invalid_host_settings_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="names without port"):
        GatewaySettings(_env_file=None, allowed_hosts=[name])
