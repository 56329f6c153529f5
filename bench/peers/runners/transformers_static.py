"""transformers' generate() in static batches of the largest size that is allowed."""

from .protocol import Load
from .transformers_generate import TransformersGenerate


def load(load: Load) -> TransformersGenerate:
    """As many requests at once as may run."""
    return TransformersGenerate(load, batch_size=load.max_batch_size)
