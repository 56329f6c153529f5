"""How long tests wait for an expected event: a slow or busy machine is no failure, so no test checks for speed."""

PATIENCE_S = 240.0
"""Less than a test may take altogether (`timeout` in pyproject.toml): who gives up can still say what did not come."""
