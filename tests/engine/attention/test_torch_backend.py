"""The reference backend against attention written out, one query at a time."""

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from orcastream.engine.attention import AttentionCall, TorchBackend, torch_plan
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.kv.layout import LayerShape
from tests.engine.attention.one_layer import QUANTIZED, OneLayer, mixed_iterations

SHAPE = LayerShape(num_heads=6, num_kv_heads=2, key_size=8, value_size=5)


class FromTheHost(TorchDispatchMode):
    """Fails if a tensor is created from host data or changes its device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        moved = (kwargs or {}).get("device") is not None and "_to_copy" in name
        if moved or "lift" in name or name.startswith(("_local_scalar", "item")):
            raise AssertionError(f"{name} within an attention call")
        return func(*args, **(kwargs or {}))


class Layer(OneLayer):
    """One layer of the torch backend; nothing may be copied within its attention."""

    def __init__(
        self,
        device: torch.device,
        call: AttentionCall,
        window: int | None = None,
        cache_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(TorchBackend(), call, shape=SHAPE, window=window, cache_dtype=cache_dtype, device=device)

    def attend(self, batch: FlatBatch, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        plan = self.backend.plan(batch, self.dtype)
        with FromTheHost():
            return self.backend.attend(plan, self.layer, query, key, value, self.call)


CALLS: list[dict[str, Any]] = [
    {},
    {"window": 1},
    {"window": 7},
    {"window": 100},
    {"softcap": 2.0},
    {"sinks": True},
    {"window": 5, "softcap": 2.0, "sinks": True},
]


@pytest.mark.parametrize("options", CALLS, ids=str)
def test_mixed_iterations_copy_nothing_from_the_host(options: dict[str, Any], device: torch.device) -> None:
    torch.manual_seed(0)
    sinks = torch.randn(SHAPE.num_heads, device=device) if options.get("sinks") else None
    call = AttentionCall(1 / math.sqrt(SHAPE.key_size), softcap=options.get("softcap"), sinks=sinks)
    mixed_iterations(Layer(device, call, options.get("window")))


@pytest.mark.parametrize("scale", [-0.4, 0.0])
def test_a_scale_of_any_sign(scale: float, device: torch.device) -> None:
    torch.manual_seed(0)
    for shape in (SHAPE, LayerShape(num_heads=6, num_kv_heads=2, key_size=8, value_size=8)):
        mixed_iterations(OneLayer(TorchBackend(), AttentionCall(scale), shape=shape, device=device))


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("cache_dtype", [*QUANTIZED, torch.bfloat16], ids=str)
def test_every_span_sees_the_values_in_the_cache(
    cache_dtype: torch.dtype, window: int | None, device: torch.device
) -> None:
    """A prompt computed at once sees its own keys with the rounding that a later step will see."""
    torch.manual_seed(0)
    mixed_iterations(Layer(device, AttentionCall(0.3), window, cache_dtype))


def test_the_spy_sees_a_copy() -> None:
    with pytest.raises(AssertionError, match="within an attention call"), FromTheHost():
        torch.tensor([1, 2])


def test_decodes_of_very_different_lengths(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_plan, "_PADDING_FREE_SLOTS", 0)
    torch.manual_seed(0)
    layer = Layer(device, AttentionCall(0.3))
    layer.iterate({"a": 100, "b": 3, "c": 4, "d": 50})
    layer.iterate({"a": 1, "b": 1, "c": 1, "d": 1})
