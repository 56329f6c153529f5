"""The kernel that draws tokens on a GPU; only `engine/sampling/drawing.py` imports it, as triton is optional."""
