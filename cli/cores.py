"""How many CPU cores this process may use."""

import os
from pathlib import Path

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Cores by affinity, fewer where a container's CPU quota says so; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CGROUP_LIMIT.read_text().split()
        cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup v2, or no quota ("max")
        pass
    return max(1, cores)
