"""transformers' generate(): requests one by one, or in static batches that wait for their longest member."""

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from .protocol import Ask, Load, Piece


def load(load: Load) -> "TransformersGenerate":
    """Load it for one request at a time."""
    return TransformersGenerate(load, batch_size=1)


def load_model(load: Load) -> Any:
    """Return the model as loaded by transformers, in evaluation mode."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(load.threads)
    model = AutoModelForCausalLM.from_pretrained(load.model, dtype=getattr(torch, load.dtype))
    return model.to(load.device).eval()


class TransformersGenerate:
    """Batches of up to `batch_size` arrived requests, each run to its end."""

    def __init__(self, load: Load, batch_size: int) -> None:
        import transformers

        self.version: str = transformers.__version__
        self._model = load_model(load)
        self._batch_size = batch_size
        self._waiting: deque[tuple[int, Ask]] = deque()

    @property
    def busy(self) -> bool:
        """Whether requests are waiting."""
        return bool(self._waiting)

    def submit(self, index: int, ask: Ask) -> None:
        """Queue a request for the next batch."""
        self._waiting.append((index, ask))

    def step(self) -> Iterable[Piece]:
        """Compute one batch, padded on the left; a token's time is the end of its step of the loop."""
        count = min(self._batch_size, len(self._waiting))
        batch = [self._waiting.popleft() for _ in range(count)]
        longest = max(len(ask.prompt) for _, ask in batch)
        steps = max(ask.max_tokens for _, ask in batch)
        output, times_s = self._generate([_padded(ask.prompt, longest) for _, ask in batch], steps)
        return [
            Piece(index, [token], at_s)
            for row, (index, ask) in zip(output, batch, strict=True)
            for token, at_s in zip(row[longest : longest + ask.max_tokens], times_s, strict=False)
        ]

    def _generate(self, rows: list[tuple[list[int], list[int]]], steps: int) -> tuple[list[list[int]], list[float]]:
        import torch

        times_s: list[float] = []

        def note(ids: Any, scores: Any, **_: Any) -> Any:
            times_s.append(time.monotonic())
            return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

        with torch.inference_mode():
            output = self._model.generate(
                torch.tensor([ids for ids, _ in rows], device=self._model.device),
                attention_mask=torch.tensor([mask for _, mask in rows], device=self._model.device),
                do_sample=False,
                max_new_tokens=steps,
                eos_token_id=None,
                pad_token_id=0,
                stopping_criteria=[note],
            )
        return output.tolist(), times_s


def _padded(prompt: list[int], length: int) -> tuple[list[int], list[int]]:
    """Return ids and attention mask."""
    padding = length - len(prompt)
    return [0] * padding + prompt, [0] * padding + [1] * len(prompt)
