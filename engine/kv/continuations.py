"""What is known to follow a prefix: for a match that ends inside a block."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

_MOST_COMPARED = 64
"""Continuations of one prefix that are compared, the newest first."""


class Continuations:
    """Per prefix the blocks that continue it, by their tokens: the edges of a radix tree whose nodes are digests.

    A block is found by its first tokens, all that it shares with a prompt, where the chain of digests can only tell
    that it is not the same. At most `most` edges are kept, the oldest go first; whether a block is still in the cache
    is for the caller to find out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._after: dict[bytes, OrderedDict[bytes, tuple[int, ...]]] = {}
        self._parents: OrderedDict[bytes, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, parent: bytes, digest: bytes, tokens: Sequence[int]) -> None:
        """The block named `digest`, which holds `tokens`, continues the prefix that ends with `parent`."""
        if digest in self._parents:
            self._parents.move_to_end(digest)
            self._after[parent].move_to_end(digest)
            return
        if len(self._parents) >= self._most:
            self.forget(next(iter(self._parents)))
        self._parents[digest] = parent
        self._after.setdefault(parent, OrderedDict())[digest] = tuple(tokens)

    def forget(self, digest: bytes) -> None:
        """That block is not in the cache any more."""
        parent = self._parents.pop(digest, None)
        if parent is not None:
            del self._after[parent][digest]
            if not self._after[parent]:
                del self._after[parent]

    def longest(self, parent: bytes, tokens: Sequence[int]) -> tuple[bytes, int] | None:
        """The block after `parent` that begins with most of `tokens`, and how many of them; None: no such token."""
        found: tuple[bytes, int] | None = None
        edges = self._after.get(parent)
        for digest, continuation in islice(reversed(edges.items()), _MOST_COMPARED) if edges else ():
            shared = _shared(continuation, tokens)
            if shared > (found[1] if found else 0):
                found = digest, shared
        return found


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens both begin with."""
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length
