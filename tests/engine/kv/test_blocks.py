"""The pool of blocks."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orcastream.engine.errors import IntegrityError, OutOfBlocks
from orcastream.engine.kv.blocks import BlockPool


def test_too_few_blocks_change_nothing() -> None:
    pool = BlockPool(2)
    with pytest.raises(OutOfBlocks, match="3 blocks are needed, 2 of 2 are free"):
        pool.take(3)
    assert pool.num_free == 2
    pool.check_integrity([])


def test_a_shared_block_is_free_after_its_last_release() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.hold(block)
    assert pool.is_shared(block)
    pool.drop(block)
    assert not pool.is_shared(block)
    assert pool.num_used == 1
    pool.drop(block)
    assert pool.is_free(block)
    assert pool.num_used == 0


def test_evicted_least_recently_used_first_and_reported_in_one_call() -> None:
    told: list[tuple[list[int], list[bytes]]] = []
    pool = BlockPool(3, lambda blocks, names: told.append((blocks, names)))
    a, b, c = pool.take(3)
    for block, name in ((a, b"a"), (b, b"b"), (c, b"c")):
        pool.name(block, name)
    for block in (b, a, c):
        pool.drop(block)
    pool.hold(b)  # used again: the most recent one from here on
    pool.drop(b)
    assert pool.take(2) == [a, c]
    assert told == [([a, c], [b"a", b"c"])]
    assert pool.find(b"a") is None
    assert pool.find(b"b") == b


def test_the_first_block_of_a_content_keeps_the_name() -> None:
    pool = BlockPool(2)
    one, two = pool.take(2)
    pool.name(one, b"x")
    pool.name(two, b"x")
    pool.drop(two)
    assert pool.find(b"x") == one
    assert pool.num_reusable == 0


def test_misuse_is_found() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    with pytest.raises(IntegrityError, match="reference counts"):
        pool.check_integrity([block, block])
    pool.drop(block)
    with pytest.raises(IntegrityError, match="released twice"):
        pool.drop(block)
    with pytest.raises(IntegrityError, match="cannot be shared"):
        pool.hold(block)
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(0)


class BlockMachine(RuleBasedStateMachine):
    """The pool against plain lists of holders and of free named blocks, in the order of their release."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[tuple[int, bytes]] = []
        self.pool = BlockPool(6, lambda blocks, names: self.evicted.extend(zip(blocks, names, strict=True)))
        self.held: list[int] = []
        self.names: dict[int, bytes] = {}
        self.reusable: list[int] = []

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        free = 6 - len(set(self.held))
        if count > free:
            with pytest.raises(OutOfBlocks):
                self.pool.take(count)
            return
        blank = free - len(self.reusable)
        gone = self.reusable[: max(0, count - blank)]
        expected = [(block, self.names.pop(block)) for block in gone]
        del self.reusable[: len(gone)]
        self.evicted.clear()
        taken = self.pool.take(count)
        assert not set(taken) & set(self.held)
        assert self.evicted == expected
        assert taken[count - len(gone) :] == gone
        self.held += taken

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.held:
            block = data.draw(st.sampled_from(self.held))
            self.held.remove(block)
            self.pool.drop(block)
            if block not in self.held and block in self.names:
                self.reusable.append(block)

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        if candidates := [*self.held, *self.reusable]:
            block = data.draw(st.sampled_from(candidates))
            self.pool.hold(block)
            self.held.append(block)
            if block in self.reusable:
                self.reusable.remove(block)

    @rule(data=st.data(), name=st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"]))
    def name(self, data: st.DataObject, name: bytes) -> None:
        if self.held:
            block = data.draw(st.sampled_from(self.held))
            self.pool.name(block, name)
            if block not in self.names and name not in self.names.values():
                self.names[block] = name

    @rule(data=st.data())
    def unname(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(0, 5))
        self.pool.unname(block)
        self.names.pop(block, None)
        if block in self.reusable:
            self.reusable.remove(block)

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity(self.held)
        assert self.pool.num_used == len(set(self.held))
        assert self.pool.num_reusable == len(self.reusable)
        for block, name in self.names.items():
            assert self.pool.find(name) == block


TestBlockMachine = BlockMachine.TestCase
TestBlockMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
