"""Run by its path, in front of a program of ours: tie the process's life to its parent's, then exec the program.

    python -I -S child.py PARENT_PID SIGNAL COMMAND [ARGUMENT ...]

The kernel sends SIGNAL when the parent's spawning thread ends, however it ends; the setting survives exec. If the
parent died before the setting took effect, getppid shows it. Standard library only: this file is not imported.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def tie_to_parent(parent_pid: int, signal_number: int) -> None:
    """Have this process receive `signal_number` when its parent dies; exit at once if it is already dead."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(1)


if __name__ == "__main__":
    tie_to_parent(int(sys.argv[1]), int(sys.argv[2]))
    try:
        os.execvp(sys.argv[3], sys.argv[3:])
    except OSError as error:
        sys.exit(f"{sys.argv[3]}: {error.strerror}")
