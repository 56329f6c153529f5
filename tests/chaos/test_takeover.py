"""Workers killed, drained and restarted in turn, gateways too, under a load of streams: no request fails."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from tests.chaos.takeover import measure

pytestmark = pytest.mark.server


@pytest.mark.timeout(1200)
async def test_a_rolling_restart_fails_no_request_and_a_full_load_costs_no_lease(tmp_path: Path) -> None:
    figures = await measure(Namespace(rounds=1, streams=4, full_load_s=5, seed=1), tmp_path / "site")
    assert figures["failed"] == [], json.dumps(figures)
    assert figures["requests"] > 4
    assert figures["full load"]["false_takeovers"] == 0
