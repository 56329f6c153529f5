"""Which processes leak: memory or descriptors that remain when all is quiet."""

from collections.abc import Iterable, Iterator

from tests.chaos.checker import Violation
from tests.chaos.resources import Sample

_MOST_MORE_DESCRIPTORS = 12
_MOST_MORE_BYTES = 100 * 2**20
"""More than a quiet process of the same name had before the load began. The KV cache, of 48 MiB, fills, and
allocators keep some."""


def find_leaks(before: Iterable[Sample], after: Iterable[Sample]) -> Iterator[Violation]:
    """Compare quiet processes before and after, by name, because a process may have been restarted."""
    first = {one.name: one for one in before}
    for one in after:
        base = first[one.name]
        more = one.descriptors - base.descriptors
        if more > _MOST_MORE_DESCRIPTORS:
            yield Violation("leaks", one.name, f"{more} descriptors more than before: {one.descriptors}")
        more = one.memory_bytes - base.memory_bytes
        if more > _MOST_MORE_BYTES:
            yield Violation("leaks", one.name, f"{more / 2**20:.0f} MiB more than before")
