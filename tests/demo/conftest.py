"""One loaded model for all tests in the folder."""

import pytest

from orcastream.demo.reader import Reader


@pytest.fixture(scope="session")
def reader() -> Reader:
    return Reader()
