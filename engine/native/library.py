"""Loads the compiled operators for the fastest instruction set of this machine."""

import ctypes
from functools import cache
from pathlib import Path

# Imported first, as it loads the OpenMP runtime: two runtimes in one process would compete for the cores.
import torch  # noqa: F401

from orcastream.engine.native.build import SOURCES, fingerprint, library_path
from orcastream.engine.native.instruction_sets import supported

_BUILD = "python -m orcastream.engine.native.build"


class LibraryUnavailable(RuntimeError):
    """The operators are missing, or not for this machine; the message says why."""


@cache
def library(instruction_set: str | None = None) -> ctypes.CDLL:
    """Return the operators for `instruction_set` (default: fastest). Raises LibraryUnavailable if there are none."""
    return _best()[1] if instruction_set is None else _load(library_path(instruction_set))


@cache
def why_unavailable() -> str | None:
    """Return why there are no compiled operators here, or None if there are."""
    try:
        library()
    except LibraryUnavailable as error:
        return str(error)
    return None


def instruction_set() -> str:
    """Return the instruction set of `library()`. Raises LibraryUnavailable if there is none."""
    return _best()[0]


@cache
def _best() -> tuple[str, ctypes.CDLL]:
    names = supported()
    if not names:
        raise LibraryUnavailable("they are compiled for x86-64 processors with AVX2")
    refused = outpaced = None
    for name in names:
        try:
            found = name, _load(library_path(name))
        except LibraryUnavailable as error:
            refused = refused or error
            continue
        if not found[1].orca_outpaced():
            return found
        outpaced = outpaced or found
    if outpaced is None:
        raise LibraryUnavailable(str(refused))
    return outpaced


def _load(path: Path) -> ctypes.CDLL:
    if not path.exists():
        raise LibraryUnavailable(f"they were not built: {_BUILD}")
    try:
        found = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryUnavailable(f"they cannot be loaded: {error}") from None
    found.orca_fingerprint.restype = ctypes.c_char_p
    if SOURCES.is_dir() and found.orca_fingerprint().decode() != fingerprint():
        raise LibraryUnavailable(f"they were built from other sources: {_BUILD}")
    if not found.orca_usable():
        raise LibraryUnavailable(f"the kernel does not let this process use the registers of {path.stem}")
    return found
