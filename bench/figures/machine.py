"""Machine, versions and command line of a measurement, so that it can be reproduced."""

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from orcastream.telemetry.processors import usable_processors
from orcastream.telemetry.version import own_version

_PACKAGES = ("torch", "transformers", "redis")


def machine() -> dict[str, Any]:
    """Return the cores that this process may use, the CPU's model, the memory in bytes and the operating system."""
    return {
        "cpu_model": _cpu_model(),
        "cores": len(usable_processors()),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, this project and the relevant installed packages; none is imported."""
    found = {"python": platform.python_version(), "orcastream": own_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def command_line(name: str, arguments: Sequence[str]) -> str:
    """Return the command as typed, without the values of --api-key and --tenant-key."""
    shown: list[str] = []
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        if shown and shown[-1] in _SECRET:
            shown.append("...")
        else:
            shown.append(f"{flag}=..." if equals and flag in _SECRET else argument)
    return shlex.join(["orcastream", "bench", name, *shown])


_SECRET = ("--api-key", "--tenant-key")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or sys.platform
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, platform.processor() or platform.machine())
