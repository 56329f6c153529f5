"""Draws that a GPU makes without blocking the host."""

import logging
from collections.abc import Iterable, Sequence
from functools import cache
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch

from orcastream.engine.batch.transfer import all_copied
from orcastream.engine.lost_device import LOST_DEVICE
from orcastream.engine.sampling.filters import DrawParams
from orcastream.engine.sampling.passes import NARROW
from orcastream.engine.sampling.race import ATTEMPTS
from orcastream.engine.sampling.weights import TILE
from orcastream.engine.triton_support import why_no_triton

_log = logging.getLogger(__name__)

_WITHOUT: set[torch.device] = set()
"""Devices for which the kernel does not compile."""


class Draw(NamedTuple):
    """One draw from row `row` of the logits, for output `position`."""

    row: int
    position: int
    params: DrawParams


def draws_on(device: torch.device) -> bool:
    """Return whether `draw_on_device` works there: on GPUs on which Triton runs, unless `compile_draws` failed."""
    return device.type == "cuda" and device not in _WITHOUT and _runs_triton(device)


@cache
def _runs_triton(device: torch.device) -> bool:
    return why_no_triton(device) is None


def draw_on_device(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Return the highest score of each draw's row and the token drawn, float64 `[2, draws]`, as `maxima` does.

    logits `[rows, vocab]` of any floating type, at least one draw. The same tokens as `Race` draws, except where
    rounding decides.
    """
    return draw_from(logits, *laid_out(draws, logits.device))


def laid_out(draws: Sequence[Draw], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the kernel reads of `draws`, int64 `[draws, 4]` and float64 `[draws, 3]`, copied at once."""
    places = [(row, params.seed, position, params.top_k) for row, position, params in draws]
    shares = [params.shares for _, _, params in draws]
    numbers, fractions = all_copied([np.array(places, dtype=np.int64), np.array(shares, dtype=np.float64)], device)
    return numbers, fractions


def draw_from(logits: torch.Tensor, places: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Do as `draw_on_device` for draws that are laid out on the device."""
    from orcastream.engine.sampling.triton.draw import draw

    eager = logits.shape[1] <= NARROW
    return draw(logits, places, shares, eager=eager, attempts=ATTEMPTS, tile=TILE)


def compile_draws(vocab: int, dtypes: Iterable[torch.dtype], device: torch.device) -> None:
    """Compile what `draw_on_device` needs for logits of these types, or the first draw would take seconds.

    Triton distinguishes whether logits begin at a multiple of 16 bytes; a view of some rows may not. If it cannot
    compile the kernel, the host draws: more slowly, and the same tokens.
    """
    try:
        for dtype in dtypes:
            logits = torch.zeros(2, vocab, dtype=dtype, device=device)
            for rows in (logits, logits[1:]):
                draw_on_device(rows, [Draw(0, 0, DrawParams.under(None, 0))])
    except torch.OutOfMemoryError:
        raise
    except LOST_DEVICE:
        raise
    except Exception as error:
        _log.warning("random draws make the host wait: Triton cannot compile the kernel for them", exc_info=error)
        _WITHOUT.add(device)


def tokens_of(found: torch.Tensor) -> list[int | None]:
    """Return the tokens of `maxima` or `draw_on_device`, None if a row offers none.

    Waits for the device, unless `found` is on the host.
    """
    values, tokens = found.tolist()
    return [int(token) if isfinite(value) else None for value, token in zip(values, tokens, strict=True)]
