"""Where the Triton kernels run: on a GPU, or else in Triton's interpreter."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module")
def triton_device() -> Iterator[torch.device]:
    """CUDA, or the CPU with the kernels interpreted, which is decided when they are first imported."""
    pytest.importorskip("triton")
    with pytest.MonkeyPatch.context() as patch:
        if torch.cuda.is_available():
            yield torch.device("cuda")
            return
        patch.setenv("TRITON_INTERPRET", "1")
        from engine.attention.triton import formats

        assert formats.INTERPRETED
        yield torch.device("cpu")
