"""How `orcastream up` handles its processes, without starting any."""

from pathlib import Path

import pytest

from orcastream.cli.stack import Stack
from orcastream.cli.up_settings import UpSettings


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
