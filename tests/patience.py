"""How long tests wait for what must come: a slow or busy machine is no failure, so nobody asks whether it came fast."""

PATIENCE_S = 240.0
"""Less than a test may take altogether (`timeout` in pyproject.toml): who gives up can still say what did not come."""
