"""One loaded model for all tests of the folder."""

import pytest
import torch

from demo.reader import Reader


@pytest.fixture(scope="session")
def reader() -> Reader:
    torch.set_num_threads(2)
    return Reader()
