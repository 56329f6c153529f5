"""The operators for AMX on a processor without the tile unit, which `emulated_tiles.h` replaces with software.

So a machine with the other instructions checks the results of the AMX kernels, and that they use no tile with wrong
sizes. Their speed shows only on a processor with AMX.
"""

import fcntl
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

from orcastream.engine.native import library as library_module
from orcastream.engine.native.build import SOURCES, fingerprint, library_path
from orcastream.engine.native.compiler import BuildError, Compiler
from orcastream.engine.native.instruction_sets import INSTRUCTION_SETS, compiler_flags, supported

_HEADER = Path(__file__).with_name("emulated_tiles.h")
_LEVEL = "-O1"
"""Overrides the optimization level of the operators in use: a third less work for the compiler."""


def serve(monkeypatch: pytest.MonkeyPatch, config: pytest.Config) -> None:
    """Make `library("amx")` load the emulated operators for one test; skip it if this machine cannot run them."""
    why = _why_not()
    if why is not None:
        pytest.skip(why)
    assert config.cache is not None
    path = _built(config.cache.mkdir("emulated_tiles"))
    monkeypatch.setattr(library_module, "library_path", lambda name: path if name == "amx" else library_path(name))


@cache
def _why_not() -> str | None:
    needed = [flag for flag in INSTRUCTION_SETS.get("amx", ("avx512_bf16",)) if not flag.startswith("amx_")]
    available = {flag for name in supported() for flag in INSTRUCTION_SETS[name]}
    if not available.issuperset(needed):
        return "this processor lacks instructions that the AMX operators use beside the tile unit"
    try:
        return Compiler.find().why_not(compiler_flags("amx"))
    except BuildError as error:
        return str(error)


@cache
def _built(folder: Path) -> Path:
    """Built once for all processes of a test run, and kept until a source or the compiler changes."""
    compiler = Compiler.find()
    made_from = repr((fingerprint(), _LEVEL, compiler.command, compiler.version)).encode() + _HEADER.read_bytes()
    current = folder / sha256(made_from).hexdigest()[:16]
    library = current / "operators.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            for earlier in (path for path in folder.iterdir() if path.is_dir()):
                shutil.rmtree(earlier)
            current.mkdir()
            _build(compiler, library)
    return library


def _build(compiler: Compiler, library: Path) -> None:
    flags = compiler_flags("amx")
    replaced = [*flags, _LEVEL, f'-DORCA_FINGERPRINT="{fingerprint()}"', "-include", str(_HEADER)]
    sources = sorted(SOURCES.glob("*.cpp"))
    objects = [library.with_name(f"{source.stem}.o") for source in sources]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda source, target: compiler.compile(source, replaced, target), sources, objects))
    compiler.link(objects, flags, library)
