"""A real worker process on a GPU, or on the emulated one where there is none."""

import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.emulated_cuda import emulated_cuda, lacking
from tests.worker.worker_process import PACED, WorkerProcess

needs_a_device = pytest.mark.skipif(
    not torch.cuda.is_available() and bool(lacking()), reason=f"no GPU, and {lacking()}"
)


class GpuWorker(WorkerProcess):
    """`orcastream worker --device cuda`, paced. Not forked: the fork server's services leave Triton out.

    Without the engine's self-check, like every worker of these tests: tests/engine/test_fused_decoder.py runs it there.
    """

    context = multiprocessing.get_context("spawn")

    def __init__(self, url: str, log_path: Path, **settings: Any) -> None:
        super().__init__(url, log_path, patch=partial(_prepare, log_path.parent), device="cuda", **settings)


def _prepare(folder: Path) -> None:
    """Slow the engine down, and replace torch.cuda in this process, for as long as it runs, if there is no GPU."""
    global _emulation
    if not torch.cuda.is_available():
        _emulation = emulated_cuda(folder, total_memory=2**32)
        _emulation.__enter__()
    PACED()


_emulation: Any = None
