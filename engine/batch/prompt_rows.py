"""Log probabilities of prompts, from the logits of the chunks in which they are computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

import torch

from orcastream.engine.request import Request
from orcastream.engine.sampling.likeliest import num_above, ranked

ROWS_AT_ONCE: Final = 64
"""Rows that are ranked together, whose temporary tensors are several times as wide."""
_LOWEST: Final = -9999.0
"""Instead of minus infinity, which not every form of a reply can say."""
PromptItem = tuple[Any, int | None]
"""Log probabilities of a prompt's token, and its rank, as PromptEvent has them."""


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """What a chunk of `request`, from token `start` to before `stop`, tells of its prompt.

    Row i of the logits of `first` + i says what was likely as token `first` + i + 1; `rows` of them are wanted, and
    `told` of those are about the prompt: the last may be about the first output.
    """

    request: Request
    first: int
    rows: int
    told: int

    @classmethod
    def of(cls, request: Request, length: int) -> "PromptChunk | None":
        """That of the next `length` tokens; None: its log probabilities are not asked for, or have been told."""
        if not request.tells_prompt:
            return None
        start, num_prompt = request.num_computed, len(request.prompt_ids)
        first, stop = max(start, request.prompt_told - 1), start + length
        told = max(0, min(stop, num_prompt - 1) - first)
        rows = stop - first if told else int(length == request.num_uncomputed)
        return cls(request, first, rows, told) if told or first == 0 else None

    def items(self, logits: torch.Tensor) -> tuple[int, tuple[PromptItem, ...]]:
        """Position of the first token, and an item per token; `logits` `[told, vocab]`.

        ArithmeticError where a row has no finite highest logit.
        """
        tokens = self.request.prompt_ids[self.first + 1 : self.first + 1 + self.told]
        items: list[PromptItem] = []
        for begin in range(0, self.told, ROWS_AT_ONCE):
            piece = slice(begin, begin + ROWS_AT_ONCE)
            items += _items(logits[piece], tokens[piece], self.request.prompt_logprobs or 0)
        return (0, ((None, None), *items)) if self.first == 0 else (self.first + 1, tuple(items))


@torch.inference_mode()
def _items(logits: torch.Tensor, tokens: Sequence[int], count: int) -> list[PromptItem]:
    """Those of each token in its row, by halves where the device has no memory."""
    try:
        ranks = ranked(logits, range(len(tokens)), count)
        where = torch.tensor(tokens, device=logits.device).unsqueeze(1)
        own = logits.gather(1, where)
        above = num_above(logits, own)
    except torch.OutOfMemoryError:
        if len(tokens) == 1:
            raise
        torch.cuda.empty_cache()
        half = len(tokens) // 2
        return _items(logits[:half], tokens[:half], count) + _items(logits[half:], tokens[half:], count)
    if not all(isfinite(total) for total, _ in ranks):
        raise ArithmeticError("the model gave no finite score for a token of the prompt")
    return [
        ([max(logit - total, _LOWEST), [[token, max(logprob, _LOWEST)] for token, logprob in likeliest]], 1 + num)
        for logit, (total, likeliest), num in zip(own.squeeze(1).tolist(), ranks, above, strict=True)
    ]
