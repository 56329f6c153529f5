"""How spans are laid end to end."""

import torch

from engine.batch.flat_batch import FlatBatch, Rows
from engine.kv.block_table import BlockTable


def table(*blocks: int) -> BlockTable:
    made = BlockTable()
    for block in blocks:
        made.append(block)
    return made


def test_single_tokens_first_by_falling_context(device: torch.device) -> None:
    spans = [
        Rows([1, 2, 3], 2, table(7, 8), True),
        Rows([4], 1, table(3), True),
        Rows([5, 6], 0, table(4), False),
        Rows([9], 5, table(1, 2), True),
    ]
    batch = FlatBatch.build(spans, 4, device)
    assert batch.num_single == 2
    assert batch.offsets == (0, 1, 2, 5)
    assert batch.input_ids.tolist() == [[9, 4, 1, 2, 3, 5, 6]]
    assert batch.position_ids.tolist() == [[5, 1, 2, 3, 4, 0, 1]]
    assert batch.slots.tolist() == [9, 13, 30, 31, 32, 16, 17]
    assert batch.logit_rows.tolist() == [0, 1, 4]
    assert batch.sampled == (3, 1, 0)
    assert batch.device.type == device.type


def test_no_logits_at_all(device: torch.device) -> None:
    batch = FlatBatch.build([Rows([5, 6], 0, table(4), False)], 4, device)
    assert batch.sampled == ()
    assert batch.logit_rows.shape == (0,)
