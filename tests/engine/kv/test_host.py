"""Slots in host memory."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orcastream.engine.errors import IntegrityError
from orcastream.engine.kv.host import HostSlots


def test_nothing_is_cached_if_all_slots_are_pinned() -> None:
    host = HostSlots(1)
    slot = host.pin()
    assert host.keep(b"a") is None
    host.unpin(slot)
    assert host.keep(b"a") == slot


def test_a_pin_overwrites_the_least_recently_used() -> None:
    host = HostSlots(2)
    host.keep(b"a")
    host.keep(b"b")
    assert host.keep(b"a") is None  # already cached, and used again
    host.pin()
    assert host.find(b"b") is None
    assert host.find(b"a") is not None


def test_misuse_is_found() -> None:
    host = HostSlots(2)
    slot = host.pin()
    with pytest.raises(IntegrityError, match="pinned"):
        host.check_integrity([])
    host.unpin(slot)
    with pytest.raises(KeyError):
        host.unpin(slot)


class HostMachine(RuleBasedStateMachine):
    """The host slots against a dictionary in order of use."""

    def __init__(self) -> None:
        super().__init__()
        self.host = HostSlots(4)
        self.pinned: list[int] = []
        self.cached: dict[bytes, int] = {}

    def room(self) -> None:
        if len(self.cached) + len(self.pinned) == 4 and self.cached:
            del self.cached[next(iter(self.cached))]

    @rule()
    def pin(self) -> None:
        if self.host.num_free:
            self.room()
            slot = self.host.pin()
            assert slot not in [*self.pinned, *self.cached.values()]
            self.pinned.append(slot)

    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        if self.pinned:
            self.pinned.remove(slot := data.draw(st.sampled_from(self.pinned)))
            self.host.unpin(slot)

    @rule(name=st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"]))
    def keep(self, name: bytes) -> None:
        slot = self.host.keep(name)
        if name in self.cached:
            assert slot is None
            self.cached[name] = self.cached.pop(name)
        elif len(self.pinned) == 4:
            assert slot is None
        else:
            self.room()
            assert slot is not None
            assert slot not in [*self.pinned, *self.cached.values()]
            self.cached[name] = slot

    @rule(data=st.data())
    def pin_cached(self, data: st.DataObject) -> None:
        if self.cached:
            name = data.draw(st.sampled_from(list(self.cached)))
            assert self.host.pin_cached(name) == self.cached[name]
            self.pinned.append(self.cached.pop(name))

    @rule(name=st.sampled_from([b"a", b"b", b"z"]))
    def forget(self, name: bytes) -> None:
        self.host.forget(name)
        self.cached.pop(name, None)

    @invariant()
    def agrees(self) -> None:
        self.host.check_integrity(self.pinned)
        assert self.host.num_free == 4 - len(self.pinned)
        for name in (b"a", b"b", b"c", b"d", b"e", b"f"):
            assert self.host.find(name) == self.cached.get(name)


TestHostMachine = HostMachine.TestCase
TestHostMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
