"""Names for the content of blocks: digests of all tokens up to the end of a block."""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np


class ContentChain:
    """The digests of a request's full blocks, in order; grows with its tokens and outlives its blocks.

    The digest of a block is SHA-256 over the digest of the previous block and its token ids as little-endian uint32:
    256 bits, so that nobody can make two prompts collide. The chain starts from a digest of tenant, salt and adapter
    (the digest of its weights): requests that differ in any of these never share a block.
    """

    __slots__ = ("_root", "awaited", "digests")

    def __init__(self, tenant: str, salt: str, adapter: bytes = b"") -> None:
        parts = (tenant.encode(), adapter, salt.encode())
        self._root = sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).digest()
        self.digests: list[bytes] = []
        self.awaited: bytes | None = None
        """The digest of the block that the request waits for, because a running one is about to compute it."""

    def extend(self, tokens: Sequence[int], num_tokens: int, block_size: int) -> None:
        """Add the missing digests of the full blocks within the first `num_tokens` of `tokens`."""
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
        """The digest with which all chains of one tenant, salt and adapter start, and no others."""
        return self._root

    def before(self, index: int) -> bytes:
        """Return the digest of all tokens before block `index`."""
        return self.digests[index - 1] if index else self._root

    def tail(self, index: int, tokens: Sequence[int]) -> bytes:
        """Return a name for block `index` when it holds only `tokens`, fewer than a full block."""
        return sha256(self.before(index) + np.asarray(tokens, dtype="<u4").tobytes()).digest()

    def copy(self, num_blocks: int) -> "ContentChain":
        """Return a copy of the first `num_blocks` that grows independently."""
        twin = object.__new__(ContentChain)
        twin._root, twin.digests, twin.awaited = self._root, self.digests[:num_blocks], None
        return twin
