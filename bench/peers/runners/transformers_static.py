"""transformers' generate() in static batches of the maximum size."""

from .protocol import Load
from .transformers_generate import TransformersGenerate


def load(load: Load) -> TransformersGenerate:
    """Load it for the maximum number of requests at once."""
    return TransformersGenerate(load, batch_size=load.max_batch_size)
