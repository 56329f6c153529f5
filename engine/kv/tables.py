"""The block tables of all running sequences, as one array."""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


class BlockTables:
    """Rows of block numbers, one row per sequence in token order: token i is in entry `i // block_size`.

    Entries without a block (after the end, or outside the window) are 0, so that a kernel may load them. One array, so
    that the tables of a batch are a single gather.
    """

    def __init__(self, num_rows: int, width: int) -> None:
        self.array: IntArray = np.zeros((num_rows, width), dtype=np.int32)

    def gather(self, rows: npt.NDArray[np.int64], width: int) -> IntArray:
        """Return the first `width` entries of `rows`, `[len(rows), width]`."""
        return self.array[rows, :width]
