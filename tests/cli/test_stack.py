"""How `orcastream up` handles its processes, without starting any."""

import re
from pathlib import Path
from typing import Any

import pytest

from orcastream.cli.ports import PortUnavailable
from orcastream.cli.stack import Stack
from orcastream.cli.up_settings import UpSettings
from tests.ports import free_port


@pytest.mark.parametrize(("drain_s", "shutdown_s"), [(20, 60), (60, 20)])
async def test_nothing_is_killed_within_its_own_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drain_s: float, shutdown_s: float
) -> None:
    settings = UpSettings(_env_file=None, data_dir=tmp_path, drain_grace_s=drain_s, shutdown_grace_s=shutdown_s)
    stack = Stack(settings, lambda name, line: None)
    graces: dict[str, float] = {}

    async def stop(*names: str, grace_s: float) -> None:
        graces.update(dict.fromkeys(names, grace_s))

    monkeypatch.setattr(stack._supervisor, "stop", stop)
    await stack.stop()
    assert graces["gateway"] > shutdown_s + 5  # which the gateway uses for the last events
    assert graces["worker-1"] > drain_s


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ({"port": 0, "redis_port": 0}, "redis_port: port {0} is the gateway's; allowed: a free port, or 0 for any"),
        (
            {"port": 0, "process_port": 1, "gateway_workers": 2, "redis_port": 2},
            "redis_port: port {2} is the gateway's",
        ),
        ({"port": 0, "admin_port": 0}, "admin_port: port {0} is the gateway's; allowed: a free port, 0 for any, or"),
        ({"port": 0, "redis_port": 1, "admin_port": 1}, "admin_port: port {1} is the embedded Redis server's"),
    ],
)
async def test_no_two_processes_get_one_port(tmp_path: Path, offsets: dict[str, int], message: str) -> None:
    first = free_port()
    values: dict[str, Any] = {
        name: first + value if name.endswith("port") else value for name, value in offsets.items()
    }
    stack = Stack(UpSettings(_env_file=None, data_dir=tmp_path / "data", **values), lambda name, line: None)
    with pytest.raises(PortUnavailable, match=re.escape(message.format(*range(first, first + 3)))):
        await stack.start()
    assert not (tmp_path / "data").exists()
