"""Whether Triton's kernels can run on a device; the package triton is optional."""

import importlib.util
import logging
from functools import cache

import torch

from orcastream.engine.errors import one_line

_log = logging.getLogger(__name__)

_OLDEST = (8, 0)
"""Compute capability that multiplies bfloat16 matrices."""


def why_no_triton(device: torch.device) -> str | None:
    """Return why Triton's kernels cannot run on `device`, or None if they can. On a CPU its interpreter runs them."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type != "cuda":
        import triton

        interpreted = bool(triton.knobs.runtime.interpret)
        return None if interpreted else "it needs a GPU (TRITON_INTERPRET=1 tries its kernels without one)"
    reason = _why_not_started()
    if reason is not None:
        return reason
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < _OLDEST:
        return "it needs a GPU of compute capability 8.0 or newer"
    return None


@cache
def _why_not_started() -> str | None:
    """Return why Triton cannot reach the GPU, or None if it can, which is cached: it compiles a module for the driver,
    for which it needs a C compiler and Python's headers, unless one was compiled before."""
    import triton

    try:
        _ = triton.runtime.driver.active.utils
    except Exception as error:
        reason = f"Triton does not start: {one_line(error) or type(error).__name__}"
        _log.warning("no Triton kernels for this GPU: %s", reason)
        return reason
    return None
