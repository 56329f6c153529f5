"""How numbers are kept, as the compiled operators name it."""

import torch

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.float8_e4m3fn: 3}
