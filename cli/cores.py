"""The number of CPU cores that this process may use."""

import os
from pathlib import Path

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Return the number of cores by CPU affinity, reduced to a container's CPU quota; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CGROUP_LIMIT.read_text().split()
        cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup v2, or no quota ("max")
        pass
    return max(1, cores)
