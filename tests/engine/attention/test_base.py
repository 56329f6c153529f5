"""The registry of backends."""

import pytest
import torch

from engine.attention import TorchBackend, base, choose_backend


class Better(TorchBackend):
    rank = 10

    @classmethod
    def unavailable(cls, device: torch.device) -> str | None:
        return None if device.type == "cpu" else "it was compiled for CPUs"


def test_auto_takes_the_best_that_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "BACKENDS", {"torch": TorchBackend, "better": Better})
    assert type(choose_backend("auto", torch.device("cpu"))) is Better
    assert type(choose_backend("auto", torch.device("meta"))) is TorchBackend
    with pytest.raises(ValueError, match="better cannot run on meta: it was compiled for CPUs"):
        choose_backend("better", torch.device("meta"))


def test_names() -> None:
    device = torch.device("cpu")
    assert type(choose_backend("torch", device)) is TorchBackend
    with pytest.raises(ValueError, match=r"attention_backend: got 'nothing', allowed: auto, .*torch"):
        choose_backend("nothing", device)
