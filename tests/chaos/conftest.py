"""The position of this suite's runs among all other tests."""

from pathlib import Path

import pytest

_RUNS = [Path(__file__).with_name(name) for name in ("test_chaos.py", "test_takeover.py")]


@pytest.hookimpl(trylast=True)  # after the hooks that select and sort
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs take minutes and mostly wait: half come first, half where the second of two test processes begins."""
    runs = [item for item in items if item.path in _RUNS]
    others = [item for item in items if item.path not in _RUNS]
    middle = len(others) // 2
    items[:] = [*runs[::2], *others[:middle], *runs[1::2], *others[middle:]]
