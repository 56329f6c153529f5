"""How many connections a gateway accepts when it may not open as many files as `max_connections` needs."""

import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from orcastream.gateway.http.descriptors import allow_descriptors
from tests.gateway.http.conftest import serving
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

FEW = 200
NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "wanted", "connections", "soft"),
    [
        ((1024, 1 << 20), 4096, 4096, 4224),
        ((8192, 8192), 4096, 4096, None),
        ((1024, NO_LIMIT), 4096, 4096, 4224),
        ((NO_LIMIT, NO_LIMIT), 4096, 4096, None),
        ((1024, 1024), 4096, 896, 1024),
        ((64, FEW), 4096, 100, FEW),
        ((FEW, FEW), 90, 90, FEW),
    ],
)
def test_connections_leave_descriptors_for_the_rest(
    limits: tuple[int, int], wanted: int, connections: int, soft: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: set_to.append(pair))
    assert allow_descriptors(wanted) == connections
    assert set_to == ([] if soft is None else [(soft, limits[1])])


def _allow_few() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, FEW))


@pytest.mark.server
def test_clients_that_hold_all_connections_do_not_keep_a_gateway_from_redis(
    module_redis: RedisServer, tmp_path: Path
) -> None:
    with (
        serving(module_redis, tmp_path, patch=_allow_few, header_timeout_s=PATIENCE_S) as gateway,
        ExitStack() as stack,
    ):
        for _ in range(FEW):
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE_S))
        with module_redis.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        give_up = time.monotonic() + PATIENCE_S
        while httpx.get(f"{gateway.url}/health/ready", timeout=PATIENCE_S).status_code != httpx.codes.OK:
            assert time.monotonic() < give_up, gateway.log
