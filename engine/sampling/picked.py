"""The likeliest tokens of an iteration, chosen by the device while nobody waits for it."""

from collections.abc import Sequence
from math import isfinite

import torch

from orcastream.engine.sampling.passes import gathered, passes


class Picked:
    """What `take_best` gives for all rows of some logits, `[rows, vocab]`, at least one, which need not be kept.

    The next iteration takes `tokens` from the device, int64 `[rows]`, before the host knows them.
    """

    def __init__(self, logits: torch.Tensor) -> None:
        maxima = [gathered(logits, rows).max(dim=-1) for rows in passes(range(len(logits)), logits)]
        self.tokens = torch.cat([each.indices for each in maxima])
        values = torch.cat([each.values for each in maxima])
        # Both in one copy: a double holds every token id exactly.
        found = torch.stack([values.double(), self.tokens.double()])
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
