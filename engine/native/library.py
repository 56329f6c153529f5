"""The compiled operators of this machine's best instruction set."""

import ctypes
from functools import cache
from pathlib import Path

# First, for it brings the OpenMP runtime: two of them in one process would compete for the cores.
import torch  # noqa: F401

from engine.native.build import SOURCES, fingerprint, library_path
from engine.native.instruction_sets import supported


class LibraryUnavailable(RuntimeError):
    """The operators are not there, or not for this machine; the message says why."""


@cache
def library(instruction_set: str | None = None) -> ctypes.CDLL:
    """The operators for `instruction_set`, by default the best that runs here; LibraryUnavailable if there is none."""
    if instruction_set is not None:
        return _load(library_path(instruction_set))
    reasons = ["they are compiled for x86-64 processors with AVX2"]
    for name in supported():
        try:
            return _load(library_path(name))
        except LibraryUnavailable as error:
            reasons.append(str(error))
    raise LibraryUnavailable(reasons[-1])


@cache
def why_unavailable() -> str | None:
    """Why there are no compiled operators here; None: there are."""
    try:
        library()
    except LibraryUnavailable as error:
        return str(error)
    return None


def _load(path: Path) -> ctypes.CDLL:
    try:
        found = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryUnavailable(f"they were not built (python -m engine.native.build): {error}") from None
    found.orca_fingerprint.restype = ctypes.c_char_p
    if SOURCES.is_dir() and found.orca_fingerprint().decode() != fingerprint():
        raise LibraryUnavailable("they were built from other sources: python -m engine.native.build")
    if not found.orca_usable():
        raise LibraryUnavailable(f"the kernel does not let this process use the registers of {path.stem}")
    return found
