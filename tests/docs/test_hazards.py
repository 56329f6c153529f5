"""Each hazard of docs/protocol.md has a row, and each row names a test that exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUM_HAZARDS = 26


def rows() -> dict[int, list[str]]:
    """Return each hazard's number and the tests that its row names."""
    text = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    table = text.partition("<!-- hazards -->")[2].partition("<!-- /hazards -->")[0]
    found: dict[int, list[str]] = {}
    for line in table.splitlines():
        if match := re.match(r"\| (\d+) \|", line):
            assert int(match[1]) not in found
            found[int(match[1])] = re.findall(r"`(test_\w+)`", line)
    return found


def broker_tests() -> set[str]:
    return {
        node.name
        for path in (ROOT / "tests/broker").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_hazard_has_a_row() -> None:
    assert sorted(rows()) == list(range(1, NUM_HAZARDS + 1))


def test_every_row_names_its_tests() -> None:
    existing = broker_tests()
    for number, named in rows().items():
        assert named, f"hazard {number} names no test"
        assert set(named) <= existing, f"hazard {number}"
        assert all(name.startswith(f"test_hazard_{number:02d}_") for name in named), f"hazard {number}"
