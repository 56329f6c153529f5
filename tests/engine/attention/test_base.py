"""The registry of backends."""

import pytest
import torch

from orcastream.engine.attention import TorchBackend, base, choose_backend


class Better(TorchBackend):
    rank = 10
    cache_dtypes = (torch.float32, torch.bfloat16)
    dtypes = (torch.float32, torch.bfloat16)

    @classmethod
    def unavailable(cls, device: torch.device) -> str | None:
        return None if device.type == "cpu" else "it was compiled for CPUs"


def test_auto_selects_the_best_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "BACKENDS", {"torch": TorchBackend, "better": Better})
    assert type(choose_backend("auto", torch.device("cpu"), torch.float32)) is Better
    assert type(choose_backend("auto", torch.device("meta"), torch.float32)) is TorchBackend
    assert type(choose_backend("auto", torch.device("cpu"), torch.float16)) is TorchBackend
    assert type(choose_backend("auto", torch.device("cpu"), torch.float32, torch.int8)) is TorchBackend
    with pytest.raises(ValueError, match="better cannot run here: it does not compute in float16"):
        choose_backend("better", torch.device("cpu"), torch.float16)
    with pytest.raises(ValueError, match=r"better cannot run here: it was compiled for CPUs \(device meta\)"):
        choose_backend("better", torch.device("meta"), torch.float32)


def test_names() -> None:
    device = torch.device("cpu")
    assert type(choose_backend("torch", device, torch.float16)) is TorchBackend
    with pytest.raises(ValueError, match=r"attention_backend: got 'nothing', allowed: auto, .*torch"):
        choose_backend("nothing", device, torch.float32)


def test_auto_leaves_out_a_faulty_backend(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(TorchBackend):
        name = "faulty"
        rank = 20

        @classmethod
        def unavailable(cls, device: torch.device) -> str | None:
            raise OSError("no driver")

    monkeypatch.setattr(base, "BACKENDS", {"torch": TorchBackend, "faulty": Faulty})
    assert type(choose_backend("auto", torch.device("cpu"), torch.float32)) is TorchBackend
    assert "attention backend faulty is left out: OSError: no driver" in caplog.text
