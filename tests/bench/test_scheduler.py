"""The scheduler's benchmark prints what it measured and draws it."""

from pathlib import Path

import pytest

from bench.scheduler import main
from engine.schedule.policies import POLICIES


def test_a_row_per_policy_and_batch_and_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "costs.svg"
    sizes = ["--running", "2", "4", "--waiting", "0", "9", "--iterations", "20"]
    assert main([*sizes, "--plot", str(picture)]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ") and "policy" not in line]
    assert len(rows) == 2 * len(POLICIES)
    assert all(row.count(" / ") == 2 for row in rows)
    assert "select(), median" in picture.read_text(encoding="utf-8")
