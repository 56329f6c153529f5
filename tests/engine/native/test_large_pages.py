"""Memory of weights and of the cache: where it begins, how long it is there, and what large pages make of it."""

import threading
from pathlib import Path

import pytest
import torch

from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.native.large_pages import PAGE_BYTES, empty_bytes, into_large_pages
from orcastream.engine.native.library import why_unavailable
from tests.engine.conftest import build
from tests.engine.running import request, run, tokens


@pytest.mark.parametrize("num_bytes", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, 3 * PAGE_BYTES + 4100])
def test_all_of_it_can_be_written_and_read(num_bytes: int) -> None:
    memory = empty_bytes(num_bytes)
    assert (memory.shape, memory.dtype) == ((num_bytes,), torch.uint8)
    memory.fill_(7)
    assert int(memory.sum()) == 7 * num_bytes


def test_large_memory_begins_where_a_large_page_may_and_holds_other_formats() -> None:
    memory = empty_bytes(2 * PAGE_BYTES)
    assert memory.data_ptr() % PAGE_BYTES == 0
    numbers = memory.view(torch.bfloat16)
    numbers.copy_(torch.arange(len(numbers)) % 128)
    assert torch.equal(numbers[-128:].float(), torch.arange(128.0))


def test_it_is_given_back_with_the_last_view() -> None:
    memory = empty_bytes(64 * PAGE_BYTES)
    address, view = memory.data_ptr(), memory[PAGE_BYTES:]
    assert _is_mapped(address)
    del memory
    assert _is_mapped(address)
    del view
    assert not _is_mapped(address)


def test_what_is_in_it_stays_while_it_gets_into_large_pages() -> None:
    """Readers see the same all the time, and what is behind the last whole page is left alone."""
    parts = [empty_bytes(size).random_() for size in (4 * PAGE_BYTES, 16 * PAGE_BYTES + 4100, 100)]
    expected = [part.clone() for part in parts]
    thread = into_large_pages(parts, is_busy=lambda: False)
    assert thread is not None
    is_over = False
    while not is_over:
        is_over = not thread.is_alive()
        assert all(map(torch.equal, parts, expected))
    if _knows_collapse():
        assert _large_bytes(parts[0].data_ptr()) >= 4 * PAGE_BYTES
    assert into_large_pages(parts[2:], is_busy=lambda: False) is None


def test_what_nobody_has_written_gets_memory() -> None:
    memory = empty_bytes(4 * PAGE_BYTES)
    thread = into_large_pages([memory], is_busy=lambda: False)
    assert thread is not None
    thread.join()
    if _knows_collapse():
        assert _large_bytes(memory.data_ptr()) >= 4 * PAGE_BYTES
    assert not memory.any()


def test_a_page_waits_for_a_moment_in_which_nobody_computes() -> None:
    looked, over = threading.Event(), threading.Event()

    def is_busy() -> bool:
        looked.set()
        return not over.wait()

    memory = empty_bytes(4 * PAGE_BYTES)
    before = _large_bytes(memory.data_ptr())
    thread = into_large_pages([memory], is_busy)
    assert thread is not None
    looked.wait()
    if _knows_collapse():
        assert _large_bytes(memory.data_ptr()) == before + PAGE_BYTES
    over.set()
    thread.join()
    if _knows_collapse():
        assert _large_bytes(memory.data_ptr()) == before + 4 * PAGE_BYTES


def test_it_comes_to_an_end_where_somebody_always_computes() -> None:
    memory = empty_bytes(3 * PAGE_BYTES)
    thread = into_large_pages([memory], is_busy=lambda: True)
    assert thread is not None
    thread.join()
    if _knows_collapse():
        assert _large_bytes(memory.data_ptr()) >= 3 * PAGE_BYTES


@pytest.mark.skipif(why_unavailable() is not None, reason=f"no compiled operators: {why_unavailable()}")
def test_the_cache_of_an_engine_gets_into_large_pages() -> None:
    config = EngineConfig("tiny", attention_backend="native", max_batch_size=256, kv_cache_memory=64 << 20)
    engine = OrcaEngine(config, build("llama"))
    before = tokens(run(engine, request("before"))["before"])
    engine.settle()
    store = engine.cache.groups[0].store
    assert store is not None
    assert store.layers[0].keys.nbytes >= PAGE_BYTES
    for part in (part for layer in store.layers for part in layer.tensors):
        assert part.transpose(0, 1).is_contiguous()  # the heads of a block side by side
        if _knows_collapse():
            assert _large_bytes(part.data_ptr()) >= part.nbytes // PAGE_BYTES * PAGE_BYTES
    assert tokens(run(engine, request("after"))["after"]) == before


def test_what_nobody_refers_to_any_more_is_given_back() -> None:
    """However much of it is still to be put into large pages."""
    memory = empty_bytes(64 * PAGE_BYTES)
    address = memory.data_ptr()
    thread = into_large_pages([memory], is_busy=lambda: False)
    del memory
    assert thread is not None
    thread.join()
    assert not _is_mapped(address)


def _knows_collapse() -> bool:
    release = Path("/proc/sys/kernel/osrelease")
    folder = Path("/sys/kernel/mm/transparent_hugepage")
    if not (release.exists() and folder.is_dir()):
        return False
    return tuple(int(part) for part in release.read_text(encoding="ascii").split(".")[:2]) >= (6, 1)


def _large_bytes(address: int) -> int:
    """In large pages, of the mapping that holds the address."""
    found = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            begin, end = (int(each, 16) for each in words[0].split("-"))
            found = begin <= address < end
        elif found and words[0] == "AnonHugePages:":
            return int(words[1]) * 1024
    return 0


def _is_mapped(address: int) -> bool:
    """Whether a mapping of this process of more than 32 MiB holds the address: smaller ones may come there at once."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        if begin <= address < end:
            return end - begin > 16 * PAGE_BYTES
    return False
