"""Fixtures: every instruction set that this machine can run, with the tile unit of AMX emulated where it is missing."""

from collections.abc import Iterator

import pytest

from orcastream.engine.native import elementwise, grouped, linear, mlp
from orcastream.engine.native import library as library_module
from orcastream.engine.native.build import library_path
from orcastream.engine.native.instruction_sets import INSTRUCTION_SETS, supported
from orcastream.engine.native.library import library
from tests.engine.native import tile_emulation


@pytest.fixture(params=list(INSTRUCTION_SETS))
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an instruction set; skipped if the processor lacks it or the operators were not built."""
    name: str = request.param
    if name == "amx" and name not in supported():
        tile_emulation.serve(monkeypatch, request.config)
        return name
    if name != "generic" and name not in supported():
        pytest.skip(f"this processor has no {name}")
    if not library_path(name).exists():
        pytest.skip("the operators were not built: python -m orcastream.engine.native.build")
    return name


@pytest.fixture
def computes_with(instruction_set: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The instruction set that all code uses that requests the fastest one."""
    chosen = instruction_set, library(instruction_set)
    monkeypatch.setattr(library_module, "_best", lambda: chosen)
    _forget_the_fastest()
    yield instruction_set
    _forget_the_fastest()


def _forget_the_fastest() -> None:
    for found in (library, elementwise._functions, grouped._functions, linear._functions, mlp._functions):
        found.cache_clear()
