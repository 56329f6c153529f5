"""Memory for weights and the cache: its alignment, its lifetime, and its move to large pages."""

import mmap
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.native.large_pages import PAGE_BYTES, empty_bytes, into_large_pages, shortened
from tests.engine.conftest import build
from tests.engine.needs_operators import needs_operators
from tests.engine.running import request, run, tokens

EXITING = """
import sys, threading, time
import torch
from orcastream.engine.native import large_pages

held, dropped, releasing = (threading.Event() for _ in range(3))


class Memory(bytearray):
    def __del__(self):
        releasing.set()
        time.sleep(0.2)  # meanwhile the interpreter is free to exit


class Last:
    def __del__(self):  # while the interpreter shuts down
        thread.join(10)
        print("ended")


def hold(*_):
    held.set()
    return int(not dropped.wait())


large_pages._madvise = lambda: hold
part = torch.frombuffer(Memory(large_pages.PAGE_BYTES), dtype=torch.uint8)
thread, last = large_pages.into_large_pages([part], is_busy=lambda: False), Last()
held.wait()
del part
dropped.set()
releasing.wait()
"""


@pytest.mark.parametrize("num_bytes", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, 3 * PAGE_BYTES + 4100])
def test_all_of_it_can_be_written_and_read(num_bytes: int) -> None:
    memory = empty_bytes(num_bytes)
    assert (memory.shape, memory.dtype) == ((num_bytes,), torch.uint8)
    memory.fill_(7)
    assert int(memory.sum()) == 7 * num_bytes


def test_large_memory_is_aligned_to_large_pages_and_holds_other_formats() -> None:
    memory = empty_bytes(2 * PAGE_BYTES)
    assert memory.data_ptr() % PAGE_BYTES == 0
    numbers = memory.view(torch.bfloat16)
    numbers.copy_(torch.arange(len(numbers)) % 128)
    assert torch.equal(numbers[-128:].float(), torch.arange(128.0))


def test_memory_is_released_with_the_last_view() -> None:
    memory = empty_bytes(64 * PAGE_BYTES)
    address, view = memory.data_ptr(), memory[PAGE_BYTES:]
    assert _is_mapped(address)
    del memory
    assert _is_mapped(address)
    del view
    assert not _is_mapped(address)


@pytest.mark.parametrize("num_bytes", [100, PAGE_BYTES + 4097, 4 * PAGE_BYTES - 1, 4 * PAGE_BYTES])
def test_shortened_memory_keeps_what_it_holds_and_returns_the_pages_behind(num_bytes: int) -> None:
    whole = empty_bytes(4 * PAGE_BYTES).fill_(7)
    short = shortened(whole, num_bytes)
    assert (len(short), short.data_ptr()) == (num_bytes, whole.data_ptr())
    assert int(short.sum()) == 7 * num_bytes
    assert not whole[-(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE :].any()  # new ones, full of zeros
    assert int(shortened(torch.full((300,), 7, dtype=torch.uint8), num_bytes=100).sum()) == 700


def test_content_survives_the_move_to_large_pages() -> None:
    """Readers see the same content throughout, and memory after the last whole page is left alone."""
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


def test_unwritten_pages_get_memory() -> None:
    memory = empty_bytes(4 * PAGE_BYTES)
    thread = into_large_pages([memory], is_busy=lambda: False)
    assert thread is not None
    thread.join()
    if _knows_collapse():
        assert _large_bytes(memory.data_ptr()) >= 4 * PAGE_BYTES
    assert not memory.any()


def test_a_page_waits_until_nothing_computes() -> None:
    looked, over = threading.Event(), threading.Event()

    def is_busy() -> bool:
        looked.set()
        return not over.wait()

    memory = empty_bytes(4 * PAGE_BYTES)
    before = _large_bytes(memory.data_ptr())
    thread = into_large_pages([memory], is_busy)
    assert thread is not None
    try:
        looked.wait()
        if _knows_collapse():
            assert _large_bytes(memory.data_ptr()) == before + PAGE_BYTES
    finally:
        over.set()
        thread.join()
    if _knows_collapse():
        assert _large_bytes(memory.data_ptr()) == before + 4 * PAGE_BYTES


def test_the_move_ends_even_if_something_always_computes() -> None:
    memory = empty_bytes(3 * PAGE_BYTES)
    thread = into_large_pages([memory], is_busy=lambda: True)
    assert thread is not None
    thread.join()
    if _knows_collapse():
        assert _large_bytes(memory.data_ptr()) >= 3 * PAGE_BYTES


@needs_operators
def test_an_engines_cache_moves_to_large_pages() -> None:
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


def test_unreferenced_memory_is_released() -> None:
    """Regardless of how much of it has not been moved to large pages."""
    memory = empty_bytes(64 * PAGE_BYTES)
    address = memory.data_ptr()
    thread = into_large_pages([memory], is_busy=lambda: False)
    del memory
    assert thread is not None
    thread.join()
    assert not _is_mapped(address)


def test_a_process_that_exits_waits_for_memory_that_is_being_released() -> None:
    """Rather than ending the thread that releases it, which would abort the process."""
    ended = subprocess.run([sys.executable, "-c", EXITING], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended\n", "")


def _knows_collapse() -> bool:
    release = Path("/proc/sys/kernel/osrelease")
    folder = Path("/sys/kernel/mm/transparent_hugepage")
    if not (release.exists() and folder.is_dir()):
        return False
    return tuple(int(part) for part in release.read_text(encoding="ascii").split(".")[:2]) >= (6, 1)


def _large_bytes(address: int) -> int:
    """Return the bytes in large pages of the mapping that contains the address."""
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
    """Whether a mapping of this process of over 32 MiB contains the address: a smaller one may appear there at once."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        if begin <= address < end:
            return end - begin > 16 * PAGE_BYTES
    return False
