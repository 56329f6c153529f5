"""The pool of blocks."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engine.errors import IntegrityError, OutOfBlocks
from engine.kv.block_table import BlockTable
from engine.kv.blocks import BlockPool


def test_grow_takes_what_is_missing_and_no_more() -> None:
    pool, table = BlockPool(4, 16), BlockTable()
    pool.grow(table, 1)
    assert len(table) == 1
    pool.grow(table, 16)
    assert len(table) == 1
    pool.grow(table, 17)
    assert (len(table), pool.num_free, pool.num_used) == (2, 2, 2)


def test_too_few_blocks_change_nothing() -> None:
    pool, table = BlockPool(2, 16), BlockTable()
    with pytest.raises(OutOfBlocks, match="3 blocks are needed, 2 are free"):
        pool.grow(table, 33)
    assert len(table) == 0
    pool.check_integrity([table])


def test_a_shared_block_is_free_after_its_last_release() -> None:
    pool, one, two = BlockPool(2, 16), BlockTable(), BlockTable()
    pool.grow(one, 1)
    pool.share(one.blocks[0])
    two.append(one.blocks[0])
    pool.check_integrity([one, two])
    pool.release(one)
    assert pool.num_free == 1
    pool.release(two)
    assert pool.num_free == 2
    pool.check_integrity([])


def test_misuse_is_found() -> None:
    pool, table, thief = BlockPool(2, 16), BlockTable(), BlockTable()
    pool.grow(table, 1)
    thief.append(table.blocks[0])
    with pytest.raises(IntegrityError):
        pool.check_integrity([table, thief])
    pool.release(table)
    with pytest.raises(IntegrityError, match="released twice"):
        pool.release(thief)
    with pytest.raises(IntegrityError, match="cannot be shared"):
        pool.share(0)


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(0, 16)


class BlockMachine(RuleBasedStateMachine):
    """Growing, sharing and releasing in any order: nothing leaks, nothing is handed out twice."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, 4)
        self.live: list[BlockTable] = []

    @rule(target=tables)
    def open(self) -> BlockTable:
        self.live.append(BlockTable())
        return self.live[-1]

    @rule(table=tables, tokens=st.integers(0, 30))
    def grow(self, table: BlockTable, tokens: int) -> None:
        missing, free = self.pool.missing(table, tokens), self.pool.num_free
        if missing > free:
            with pytest.raises(OutOfBlocks):
                self.pool.grow(table, tokens)
        else:
            self.pool.grow(table, tokens)
            assert self.pool.num_free == free - missing
            assert len(table) * 4 >= tokens

    @rule(target=tables, table=tables)
    def fork(self, table: BlockTable) -> BlockTable:
        copy = self.open()
        for block in table.blocks:
            self.pool.share(block)
            copy.append(block)
        return copy

    @rule(table=consumes(tables))
    def release(self, table: BlockTable) -> None:
        self.pool.release(table)
        self.live.remove(table)

    @invariant()
    def nothing_leaks(self) -> None:
        self.pool.check_integrity(self.live)
        assert self.pool.num_used == len({block for table in self.live for block in table.blocks})


TestBlockMachine = BlockMachine.TestCase
TestBlockMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
