"""Known continuations of prefixes, for matches that end inside a block."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

_MOST_COMPARED = 64
"""Most continuations of one prefix that are compared, newest first."""


class Continuations:
    """The blocks that continue each prefix, with their tokens: the edges of a radix tree whose nodes are digests.

    A block is found by the tokens at its start that it shares with a prompt; its digest alone could only tell that the
    whole block differs. At most `most` edges are kept, and the oldest are dropped first. The caller checks whether a
    block is still in the cache.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._after: dict[bytes, OrderedDict[bytes, tuple[int, ...]]] = {}
        self._parents: OrderedDict[bytes, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, parent: bytes, digest: bytes, tokens: Sequence[int]) -> None:
        """Note that block `digest`, which holds `tokens`, continues the prefix that ends with `parent`."""
        if digest in self._parents:
            self._parents.move_to_end(digest)
            self._after[parent].move_to_end(digest)
            return
        if len(self._parents) >= self._most:
            self.forget(next(iter(self._parents)))
        self._parents[digest] = parent
        self._after.setdefault(parent, OrderedDict())[digest] = tuple(tokens)

    def forget(self, digest: bytes) -> None:
        """Forget block `digest`, which is no longer in the cache."""
        parent = self._parents.pop(digest, None)
        if parent is not None:
            del self._after[parent][digest]
            if not self._after[parent]:
                del self._after[parent]

    def longest(self, parent: bytes, tokens: Sequence[int]) -> tuple[bytes, int] | None:
        """Return the block after `parent` that shares most leading `tokens`, and how many; None if none shares any."""
        found: tuple[bytes, int] | None = None
        edges = self._after.get(parent)
        for digest, continuation in islice(reversed(edges.items()), _MOST_COMPARED) if edges else ():
            shared = _shared(continuation, tokens)
            if shared > (found[1] if found else 0):
                found = digest, shared
        return found


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length
