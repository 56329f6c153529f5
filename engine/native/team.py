"""The threads that compute an operator together."""

import ctypes

import torch

from orcastream.engine.native.library import library


def team_size(values: int, per_thread: int) -> int:
    """Return how many threads compute that many values: one if a second is not worth its start, else all.

    Never some of them: OpenMP ends the threads that a smaller team leaves out and starts others for the next one.
    """
    return torch.get_num_threads() if values >= 2 * per_thread else 1


def team_threads() -> list[int]:
    """Return the kernel's ids of the threads that compute for the calling one, which is the first.

    Raises LibraryUnavailable without the compiled operators.
    """
    most = torch.get_num_threads()
    ids = (ctypes.c_int32 * most)()
    return ids[: library().orca_team(ids, most)]
