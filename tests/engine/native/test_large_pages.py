"""Memory of weights: where it begins, how long it is there, and what it is where large pages are refused."""

import mmap
from pathlib import Path

import pytest
import torch

from orcastream.engine.native.large_pages import PAGE_BYTES, empty_bytes

needs_large_pages = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no large pages")


@pytest.mark.parametrize("num_bytes", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, 3 * PAGE_BYTES + 4100])
def test_all_of_it_can_be_written_and_read(num_bytes: int) -> None:
    memory = empty_bytes(num_bytes)
    assert (memory.shape, memory.dtype) == ((num_bytes,), torch.uint8)
    memory.fill_(7)
    assert int(memory.sum()) == 7 * num_bytes


@needs_large_pages
def test_large_memory_begins_with_a_page_and_holds_other_formats() -> None:
    memory = empty_bytes(2 * PAGE_BYTES)
    assert memory.data_ptr() % PAGE_BYTES == 0
    numbers = memory.view(torch.bfloat16)
    numbers.copy_(torch.arange(len(numbers)) % 128)
    assert torch.equal(numbers[-128:].float(), torch.arange(128.0))


@needs_large_pages
def test_it_is_given_back_with_the_last_view() -> None:
    memory = empty_bytes(64 * PAGE_BYTES)
    address, view = memory.data_ptr(), memory[PAGE_BYTES:]
    assert _is_mapped(address)
    del memory
    assert _is_mapped(address)
    del view
    assert not _is_mapped(address)


@needs_large_pages
def test_a_system_that_refuses_gives_small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 0x7FFF)  # an advice that no kernel knows
    memory = empty_bytes(PAGE_BYTES).fill_(1)
    assert int(memory.sum()) == PAGE_BYTES


def _is_mapped(address: int) -> bool:
    """Whether a mapping of this process of more than 32 MiB holds the address: smaller ones may come there at once."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        if begin <= address < end:
            return end - begin > 16 * PAGE_BYTES
    return False
