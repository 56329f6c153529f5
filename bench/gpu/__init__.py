"""Checks and measurements of the kernels and the engine on a GPU."""
