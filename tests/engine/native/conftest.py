"""Every instruction set that this machine can run."""

import pytest

from orcastream.engine.native.build import library_path
from orcastream.engine.native.instruction_sets import INSTRUCTION_SETS, supported


@pytest.fixture(params=list(INSTRUCTION_SETS))
def instruction_set(request: pytest.FixtureRequest) -> str:
    """Its name; skipped where the processor lacks it or the operators were not built."""
    name: str = request.param
    if name != "generic" and name not in supported():
        pytest.skip(f"this processor has no {name}")
    if not library_path(name).exists():
        pytest.skip("the operators were not built: python -m orcastream.engine.native.build")
    return name
