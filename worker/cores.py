"""The physical cores of this machine."""

from collections.abc import Iterable
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def physical_cores(processors: Iterable[int], topology: Path = _TOPOLOGY) -> list[frozenset[int]]:
    """Group logical processors by the physical core that runs them, cores in order of their first one.

    Where the system does not tell, each is a core of its own.
    """
    cores: dict[str, set[int]] = {}
    for processor in sorted(processors):
        try:
            siblings = (topology / f"cpu{processor}" / "topology" / "thread_siblings_list").read_text()
        except OSError:
            siblings = str(processor)
        cores.setdefault(siblings.strip(), set()).add(processor)
    return [frozenset(core) for core in cores.values()]
