"""Where in the KV cache the tokens of one request lie."""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


class BlockTable:
    """The blocks of one request in the order of its tokens: token i lies in entry `i // block_size`.

    Kept in an array that doubles when it is full, so that a batch is built without a Python loop over blocks.
    """

    __slots__ = ("_blocks", "_length")

    def __init__(self) -> None:
        self._blocks: IntArray = np.empty(8, dtype=np.int64)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def blocks(self) -> list[int]:
        """The block numbers, as plain integers."""
        return [int(block) for block in self._blocks[: self._length]]

    @property
    def array(self) -> IntArray:
        """The block numbers, `[len(self)]`; a view that is valid until the table changes."""
        return self._blocks[: self._length]

    def append(self, block: int) -> None:
        """Add a block behind the last one."""
        if self._length == len(self._blocks):
            self._blocks = np.concatenate([self._blocks, np.empty_like(self._blocks)])
        self._blocks[self._length] = block
        self._length += 1

    def clear(self) -> list[int]:
        """Empty the table; the blocks that it held."""
        blocks = self.blocks
        self._length = 0
        return blocks

    def slots(self, start: int, stop: int, block_size: int) -> IntArray:
        """The cache slots of tokens `start` … `stop - 1`: slot = block * block_size + offset, `[stop - start]`."""
        positions = np.arange(start, stop)
        return self._blocks[positions // block_size] * block_size + positions % block_size
