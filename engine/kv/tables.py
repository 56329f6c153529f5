"""The block tables of all running sequences, as one array."""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


class BlockTables:
    """Row r lists the blocks of one sequence in the order of its tokens: token i lies in entry `i // block_size`.

    Entries of no block (after the end, or behind the window) are 0, so that a kernel may load them. One array, so that
    the tables of a batch are one gather.
    """

    def __init__(self, num_rows: int, width: int) -> None:
        self.array: IntArray = np.zeros((num_rows, width), dtype=np.int32)

    def gather(self, rows: npt.NDArray[np.int64], width: int) -> IntArray:
        """The first `width` entries of `rows`, `[len(rows), width]`."""
        return self.array[rows, :width]
