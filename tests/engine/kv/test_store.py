"""Moving blocks."""

import pytest
import torch

from orcastream.engine.attention import TorchBackend
from orcastream.engine.kv.layout import LayerShape
from orcastream.engine.kv.store import KVStore

SHAPE = LayerShape(4, 2, 8, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn], ids=str)
def test_blocks_move_with_all_their_data(dtype: torch.dtype, device: torch.device) -> None:
    layers = [TorchBackend().allocate(SHAPE, 6, 4, dtype, device) for _ in range(2)]
    for layer in layers:
        for part in layer.tensors:
            part.copy_(torch.randint(-9, 9, part.shape).to(part.dtype))
    store = KVStore(layers, 3)
    before = [[part.float().clone() for part in layer.tensors] for layer in layers]
    store.copy(0, 1)
    store.to_host([5, 2], [2, 0])
    store.to_device([0, 2], [3, 4])
    for layer, old in zip(layers, before, strict=True):
        for part, was in zip(layer.tensors, old, strict=True):
            for block, source in ((0, 0), (1, 0), (2, 2), (3, 2), (4, 5), (5, 5)):
                assert torch.equal(part.float()[:, block], was[:, source])
