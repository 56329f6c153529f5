"""Masks of the tokens that may come next in constrained outputs, computed while the model runs."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from orcastream.engine.request import Request

Mask = npt.NDArray[np.uint8]


class Matcher(Protocol):
    """The constraint of one request's output: a state that its tokens advance, shared with no other request.

    An error that a call raises ends its request. Calls come from one thread, one at a time, and should release the
    interpreter if they take long.
    """

    def consume(self, token_ids: Sequence[int]) -> None:
        """Advance the state by these tokens, which come next in the output."""

    def fill(self, mask: Mask) -> None:
        """Write which tokens may follow; at the end of an output these are the ones that end it.

        mask `[mask_bytes(vocab_size)]` uint8, to be written as a whole: token t is bit t % 8, from the lowest, of byte
        t // 8.
        """


def mask_bytes(vocab_size: int) -> int:
    """Return the bytes of a mask: whole words of 32 tokens."""
    return -(-vocab_size // 32) * 4


@dataclass(frozen=True, slots=True)
class Masks:
    """Masks `[num_masks, mask_bytes]` uint8, the row of each request in them, and why requests without a row failed."""

    bits: Mask
    rows: "dict[Request, int]" = field(default_factory=dict)
    failed: "dict[Request, str]" = field(default_factory=dict)

    def to(self, device: torch.device) -> torch.Tensor:
        """Return the masks on `device`."""
        return torch.from_numpy(self.bits).to(device)


NO_MASKS = Masks(np.empty((0, 0), dtype=np.uint8))


class MaskThread:
    """Computes the masks of one iteration after another."""

    def __init__(self, vocab_size: int) -> None:
        self._width = mask_bytes(vocab_size)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._thread.submit(int)  # starts the thread: later, the host might refuse one

    def begin(self, requests: "Sequence[Request]") -> "Future[Masks] | None":
        """Begin the masks for the next token of `requests` and of their followers; None if none is constrained.

        The tokens of those requests must not change before the result is available, unless it is never used.
        """
        followed = [each for each in requests if each.matcher is not None or each.followers]
        if not followed:
            return None
        matched = [each for leader in followed for each in (leader, *leader.followers) if each.matcher is not None]
        return self._thread.submit(self._fill, matched) if matched else None

    def _fill(self, requests: "list[Request]") -> Masks:
        masks = Masks(np.empty((len(requests), self._width), dtype=np.uint8))
        for row, request in enumerate(requests):
            try:
                _fill(request, masks.bits[row])
                masks.rows[request] = row
            except Exception as error:
                masks.failed[request] = f"the constraint failed on this request: {error}"
        return masks


def _fill(request: "Request", mask: Mask) -> None:
    """Fill `mask`, after the matcher has consumed tokens generated since the last mask, or elsewhere before."""
    assert request.matcher is not None
    new = request.output_ids[request.num_matched :]
    if new:
        request.matcher.consume(new)
        request.num_matched += len(new)
    request.matcher.fill(mask)


def allowed(masks: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return bool `[rows, vocab_size]` for masks `[rows, mask_bytes]` uint8."""
    bits = torch.arange(8, dtype=torch.uint8, device=masks.device)
    return (masks.unsqueeze(-1) >> bits).bitwise_and_(1).bool().flatten(1)[:, :vocab_size]
