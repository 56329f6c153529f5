"""The tokens of an iteration, chosen on the device without blocking the host."""

from collections.abc import Sequence

import torch

from orcastream.engine.sampling.drawing import Draw, draw_on_device, tokens_of
from orcastream.engine.sampling.passes import gathered, passes


def maxima(scores: torch.Tensor) -> torch.Tensor:
    """Return the highest score of each row and the first token that has it, `[2, rows]`, for one copy to the host.

    The score is NaN if any score of the row is. A double holds every token id exactly.
    """
    values, tokens = scores.max(dim=-1)
    return torch.stack([values.double(), tokens.double()])


class Picked:
    """The tokens for all rows (at least one) of logits `[rows, vocab]`, which need not be kept.

    They are the result of `sample` for rows that ask for nothing else, with these `draws`, one per row; without draws,
    that of `take_best`. The next iteration reads `tokens`, int64 `[rows]`, on the device before the host knows them.
    """

    def __init__(self, logits: torch.Tensor, draws: Sequence[Draw] | None = None) -> None:
        if draws is None:
            best = [maxima(gathered(logits, rows)) for rows in passes(range(len(logits)), logits)]
            found = torch.cat(best, dim=1)
        else:
            found = draw_on_device(logits, draws)
        self.tokens = found[1].long()
        self._copied: torch.cuda.Event | None = None
        self._found = found
        if found.device.type == "cuda":
            self._found = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            self._found.copy_(found, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def wait(self, rows: Sequence[int]) -> list[int | None]:
        """Return the token of each of `rows`, None if it offers none. Waits for the copy, not for later launches."""
        if self._copied is not None:
            self._copied.synchronize()
        tokens = tokens_of(self._found)
        return [tokens[row] for row in rows]
