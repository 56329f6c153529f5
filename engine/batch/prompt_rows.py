"""Log probabilities of prompts, from the logits of the chunks in which they are computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

import torch

from orcastream.engine.batch.transfer import copied
from orcastream.engine.memory_errors import is_out_of_memory, release
from orcastream.engine.request import Request
from orcastream.engine.sampling.likeliest import num_above, ranked

ROWS_AT_ONCE: Final = 64
"""Rows that are ranked together; their temporary tensors take several times the memory."""
_LOWEST: Final = -9999.0
"""Replaces minus infinity, which not every reply format can express."""
PromptItem = tuple[Any, int | None]
"""Log probabilities and rank of a prompt token, as in PromptEvent."""


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """The prompt logprobs that a chunk of `request`, tokens `start` to `stop` - 1, reports.

    Logits row i is that of token `first` + i and predicts token `first` + i + 1. `rows` rows are wanted; `told` of them
    predict prompt tokens, and the last may predict the first output.
    """

    request: Request
    first: int
    rows: int
    told: int

    @classmethod
    def of(cls, request: Request, length: int) -> "PromptChunk | None":
        """Return the chunk of the next `length` tokens; None if its logprobs are not requested, or were reported."""
        if not request.tells_prompt:
            return None
        start, num_prompt = request.num_computed, len(request.prompt_ids)
        first, stop = max(start, request.prompt_told - 1), start + length
        told = max(0, min(stop, num_prompt - 1) - first)
        rows = stop - first if told else int(length == request.num_uncomputed)
        return cls(request, first, rows, told) if told or first == 0 else None

    def items(self, logits: torch.Tensor) -> tuple[int, tuple[PromptItem, ...]]:
        """Return the position of the first token, and an item per token; `logits` `[told, vocab]`.

        Raises ArithmeticError if the highest logit of a row is not finite.
        """
        tokens = self.request.prompt_ids[self.first + 1 : self.first + 1 + self.told]
        items: list[PromptItem] = []
        for begin in range(0, self.told, ROWS_AT_ONCE):
            piece = slice(begin, begin + ROWS_AT_ONCE)
            items += _items(logits[piece], tokens[piece], self.request.prompt_logprobs or 0)
        return (0, ((None, None), *items)) if self.first == 0 else (self.first + 1, tuple(items))


@torch.inference_mode()
def _items(logits: torch.Tensor, tokens: Sequence[int], count: int) -> list[PromptItem]:
    """Return the item of each token in its row, computed in halves if memory does not suffice."""
    try:
        ranks = ranked(logits, range(len(tokens)), count)
        where = copied(tokens, logits.device).unsqueeze(1)
        own = logits.gather(1, where)
        above = num_above(logits, own)
    except Exception as error:
        if len(tokens) == 1 or not is_out_of_memory(error):
            raise
        release(error)
        half = len(tokens) // 2
        return _items(logits[:half], tokens[:half], count) + _items(logits[half:], tokens[half:], count)
    if not all(isfinite(total) for total, _ in ranks):
        raise ArithmeticError("the model gave no finite score for a token of the prompt")
    return [
        ([max(logit - total, _LOWEST), [[token, max(logprob, _LOWEST)] for token, logprob in likeliest]], 1 + num)
        for logit, (total, likeliest), num in zip(own.squeeze(1).tolist(), ranks, above, strict=True)
    ]
