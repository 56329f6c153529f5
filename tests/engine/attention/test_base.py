"""The registry of backends."""

import pytest
import torch

from engine.attention import BACKENDS, TorchBackend, choose_backend


def test_auto_and_names() -> None:
    device = torch.device("cpu")
    assert isinstance(choose_backend("torch", device), TorchBackend)
    assert type(choose_backend("auto", device)) in BACKENDS.values()
    with pytest.raises(ValueError, match=r"attention_backend: got 'nothing', allowed: auto, .*torch"):
        choose_backend("nothing", device)
