"""Number formats, as the compiled operators name them."""

import torch

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.float8_e4m3fn: 3}

COMPACT_BFLOAT16 = 4
"""Weights of bfloat16 in 12 bits."""
