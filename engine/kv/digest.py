"""Names for the content of blocks: what a block holds follows from all tokens up to its end."""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np


class ContentChain:
    """The digests of a request's full blocks, in order; grows with its tokens and outlives its blocks.

    The digest of a block is SHA-256 over that of the block before it and its token ids as little-endian uint32: 256
    bits, so that nobody can make two prompts collide. The chain begins with a digest of tenant, salt and adapter (that
    of its files): requests of different ones never share a block.
    """

    __slots__ = ("_root", "digests", "tails")

    def __init__(self, tenant: str, salt: str, adapter: bytes = b"") -> None:
        parts = (tenant.encode(), adapter, salt.encode())
        self._root = sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).digest()
        self.digests: list[bytes] = []
        self.tails: set[bytes] = set()
        """Names that its last block got while it was not full."""

    def extend(self, tokens: Sequence[int], num_tokens: int, block_size: int) -> None:
        """Add the digests of the full blocks within the first `num_tokens` of `tokens` that it lacks."""
        have, full = len(self.digests), num_tokens // block_size
        if full <= have:
            return
        packed = np.asarray(tokens[have * block_size : full * block_size], dtype="<u4").tobytes()
        width = 4 * block_size
        parent = self.digests[-1] if self.digests else self._root
        for start in range(0, len(packed), width):
            parent = sha256(parent + packed[start : start + width]).digest()
            self.digests.append(parent)

    @property
    def root(self) -> bytes:
        """What all chains of one tenant, salt and adapter begin with, and no other."""
        return self._root

    def before(self, index: int) -> bytes:
        """The digest of all that comes before block `index`."""
        return self.digests[index - 1] if index else self._root

    def tail(self, index: int, tokens: Sequence[int]) -> bytes:
        """A name for block `index` when it holds no more than `tokens`, fewer than a block has room for."""
        name = sha256(self.before(index) + np.asarray(tokens, dtype="<u4").tobytes()).digest()
        self.tails.add(name)
        return name

    def cut(self, num_blocks: int) -> None:
        """Forget the digests from block `num_blocks` on: other tokens may come there."""
        del self.digests[num_blocks:]

    def copy(self, num_blocks: int) -> "ContentChain":
        """One of the first `num_blocks` that grows by itself from here on."""
        twin = object.__new__(ContentChain)
        twin._root, twin.digests, twin.tails = self._root, self.digests[:num_blocks], set()
        return twin
