"""The likeliest tokens of an iteration, chosen by the device while nobody waits for it."""

from collections.abc import Sequence
from math import isfinite

import torch

from orcastream.engine.sampling.passes import gathered, passes


def maxima(scores: torch.Tensor) -> torch.Tensor:
    """Of each row the highest score and the first token that has it, `[2, rows]`, for one copy to the host.

    Not a number where one is not. A double holds every token id exactly.
    """
    values, tokens = scores.max(dim=-1)
    return torch.stack([values.double(), tokens.double()])


class Picked:
    """What `take_best` gives for all rows of some logits, `[rows, vocab]`, at least one, which need not be kept.

    The next iteration takes `tokens` from the device, int64 `[rows]`, before the host knows them.
    """

    def __init__(self, logits: torch.Tensor) -> None:
        found = torch.cat([maxima(gathered(logits, rows)) for rows in passes(range(len(logits)), logits)], dim=1)
        self.tokens = found[1].long()
        self._copied: torch.cuda.Event | None = None
        self._found = found
        if found.device.type == "cuda":
            self._found = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            self._found.copy_(found, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def wait(self, rows: Sequence[int]) -> list[int | None]:
        """The token of each of `rows`, None: it offers none. Waits for the copy, not for what was launched since."""
        if self._copied is not None:
            self._copied.synchronize()
        values, tokens = self._found.tolist()
        return [int(tokens[row]) if isfinite(values[row]) else None for row in rows]
