"""Models of a given shape with random weights, created on their device."""

import torch
from transformers import PreTrainedModel, Qwen3ForCausalLM

from orcastream.bench.random_model import model_config
from orcastream.bench.shapes import SHAPES
from orcastream.engine.model.passes import passes_unavailable
from orcastream.engine.model.prepare import make_faster_unchecked
from orcastream.engine.model.quiet import quiet


def random_model(
    shape: str, device: torch.device, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> PreTrainedModel:
    """Return a model like that of `make-model`, without writing it to a disk.

    On a GPU it has the passes of a worker's model; its modules compute the same as before.
    """
    config = model_config(SHAPES[shape])
    config.dtype = dtype
    torch.manual_seed(seed)
    with quiet():
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                model = Qwen3ForCausalLM(config)
        finally:
            torch.set_default_dtype(before)
    made: PreTrainedModel = model.eval()
    if device.type == "cuda" and passes_unavailable(device) is None:
        make_faster_unchecked(made)
    return made
