"""What a model must compute in flat batches: its own logits for random sequences, each alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from orcastream.engine.errors import UnsupportedModel
from orcastream.engine.model.quiet import quiet
from orcastream.engine.model.self_check.schedule import SHORT, Schedule


@dataclass(frozen=True, slots=True)
class Reference:
    """Random sequences, and the logits that a model computes for them alone, `[len(sequence), vocab]` each."""

    sequences: list[list[int]]
    logits: list[torch.Tensor]

    @classmethod
    def of(cls, model: PreTrainedModel, max_model_len: int, schedule: Schedule = SHORT) -> "Reference":
        """Compute the reference of `model` with its own eager attention. Raises UnsupportedModel if it does not run."""
        vocab_size = model.config.get_text_config().vocab_size
        generator = torch.Generator().manual_seed(1)
        sequences = [
            torch.randint(vocab_size, (min(sum(chunks), max_model_len),), generator=generator).tolist()
            for _, chunks in schedule
        ]
        with refusing(model):
            return cls(sequences, [own_logits(model, sequence) for sequence in sequences])


@contextmanager
def refusing(model: PreTrainedModel) -> Iterator[None]:
    """Turn any other error of a model into UnsupportedModel."""
    try:
        yield
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(f"{type(model).__name__} does not run in a flat batch: {error!r}") from error


@torch.inference_mode()
def own_logits(model: PreTrainedModel, sequence: list[int]) -> torch.Tensor:
    """Return the model's own eager logits, `[len(sequence), vocab]`."""
    attend_eagerly(model)
    ids = torch.tensor([sequence], device=model.device)
    positions = torch.arange(len(sequence), device=model.device).unsqueeze(0)
    logits: torch.Tensor = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
    return logits


def attend_eagerly(model: PreTrainedModel) -> None:
    """Let the model compute with its own eager attention from now on."""
    with quiet():
        model.set_attn_implementation("eager")
