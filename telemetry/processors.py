"""The logical processors that this process may use."""

import os


def usable_processors() -> set[int]:
    """Return the logical processors on which this process may run, whatever its threads may; all without affinity."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(os.getpid())
    return set(range(os.cpu_count() or 1))
