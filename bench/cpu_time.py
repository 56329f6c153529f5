"""CPU time of a process."""

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the seconds of all its threads, in user and kernel mode: fields 14 and 15 of /proc/PID/stat."""
    behind_name = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(behind_name[11]) + int(behind_name[12])) / _TICKS_PER_S
