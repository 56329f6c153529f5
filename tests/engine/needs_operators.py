"""Marks tests that need the compiled operators."""

import pytest

from orcastream.engine.native.library import why_unavailable

_WHY = why_unavailable()
needs_operators = pytest.mark.skipif(_WHY is not None, reason=f"no compiled operators: {_WHY}")
