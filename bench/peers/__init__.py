"""Comparison of the engine with other systems: same model and requests, each in its own process and environment."""
