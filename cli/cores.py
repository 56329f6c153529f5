"""The number of CPU cores that this process may use."""

from pathlib import Path

from orcastream.telemetry.processors import usable_processors

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Return the number of cores by CPU affinity, reduced to a container's CPU quota; at least 1."""
    cores = len(usable_processors())
    try:
        quota, period = _CGROUP_LIMIT.read_text().split()
        cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup v2, or no quota ("max")
        pass
    return max(1, cores)
