"""Tokens that the device chooses ahead equal those that sampling would choose."""

import pytest
import torch

from orcastream.engine.sampling import passes
from orcastream.engine.sampling.picked import Picked
from orcastream.engine.sampling.sampler import take_best


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("at_once", [1, 3, 64])
def test_the_device_chooses_as_sampling_does(at_once: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(at_once)
    # Every score occurs once, so that there is one best.
    logits = torch.stack([torch.randperm(250, generator=generator) for _ in range(7)]).to(dtype)
    logits[2], logits[4, 7], logits[5, 9] = -torch.inf, torch.nan, torch.inf
    monkeypatch.setattr(passes, "_CACHED", at_once * logits.shape[1])
    picked = Picked(logits)
    rows = [6, 0, 2, 3, 4, 5]
    assert picked.wait(rows) == take_best(logits, rows)
    assert [token is None for token in picked.wait(rows)] == [False, False, True, False, True, True]
    assert picked.tokens[[6, 0]].tolist() == picked.wait([6, 0])
