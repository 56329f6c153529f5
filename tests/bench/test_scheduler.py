"""The scheduler's benchmark prints and plots its measurements."""

from pathlib import Path

import pytest

from orcastream.bench.scheduler import main
from orcastream.engine.schedule.policies import POLICIES

_SIZES = ["--running", "2", "4", "--waiting", "0", "9", "--iterations", "20"]


def test_a_row_per_policy_and_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_SIZES) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ") and "policy" not in line]
    assert len(rows) == 2 * len(POLICIES)
    assert all(row.count(" / ") == 2 for row in rows)


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "costs.svg"
    assert main([*_SIZES, "--plot", str(picture)]) == 0
    assert "select(), median" in picture.read_text(encoding="utf-8")
