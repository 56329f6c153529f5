"""Measures how much memory this process may still allocate on its host."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class _Version(NamedTuple):
    """The mount point and file names of the memory controller in one version of cgroups."""

    mount: str
    limit: str
    usage: str
    reclaimable: str


_V2 = _Version("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_V1 = _Version("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_host_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that can be allocated without swapping or being killed; None if the system does not report them.

    The minimum of MemAvailable, which unlike MemFree includes memory that the kernel can reclaim, and of the room below
    the limit of each memory cgroup (version 1 or 2) of this process. `root` contains `proc` and `sys`.
    """
    found = [room for room in (_mem_available(root), *_cgroup_rooms(root)) if room is not None]
    return max(0, min(found)) if found else None


def _mem_available(root: Path) -> int | None:
    kibibytes = _field(_text(root / "proc/meminfo"), "MemAvailable:")
    return None if kibibytes is None else kibibytes * 1024


def _cgroup_rooms(root: Path) -> Iterator[int | None]:
    """Yield the room left in every memory cgroup of this process, innermost first."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            version = _V2
        elif "memory" in controllers.split(","):
            version = _V1
        else:
            continue
        mount = root / version.mount
        # A container often sees its host's path, but a mount that begins at its own group: check the mount itself, too.
        group = mount / path.strip("/")
        while group != mount and mount in group.parents:
            yield _room(group, version)
            group = group.parent
        yield _room(mount, version)


def _room(group: Path, version: _Version) -> int | None:
    """Return limit minus usage, not counting file pages that the kernel reclaims first; None if there is no limit."""
    limit, usage = _text(group / version.limit).strip(), _text(group / version.usage).strip()
    if not limit.isdecimal() or not usage.isdecimal():
        return None
    reclaimable = _field(_text(group / "memory.stat"), version.reclaimable) or 0
    return int(limit) - max(0, int(usage) - reclaimable)


def _field(text: str, name: str) -> int | None:
    """Return the number after `name` at the beginning of a line, or None."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
