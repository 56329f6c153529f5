"""Where the tokens of a request lie."""

import pytest

from engine.kv.block_table import BlockTable


def test_slots_follow_the_blocks_in_order() -> None:
    table = BlockTable()
    for block in (5, 2, 9):
        table.append(block)
    assert table.slots(0, 4, 4).tolist() == [20, 21, 22, 23]
    assert table.slots(3, 9, 4).tolist() == [23, 8, 9, 10, 11, 36]


@pytest.mark.parametrize("count", [1, 8, 9, 100])
def test_it_grows(count: int) -> None:
    table = BlockTable()
    for block in range(count):
        table.append(block)
    assert table.blocks == list(range(count))
    assert len(table.array) == len(table) == count
    assert table.clear() == list(range(count))
    assert len(table) == 0
