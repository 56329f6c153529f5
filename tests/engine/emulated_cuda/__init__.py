"""A CUDA device that computes on the CPU, as late and as strictly as a real GPU may.

It refuses what a GPU refuses: tensors of two devices in one operation, a conversion to numpy, a wait while a graph is
captured, a kernel on host memory. Where a GPU gives no guarantee, it shows the worst case. It starts work only when the
host waits for it, and each stream only as far as needed. An asynchronous copy reads page-locked memory at that late
time. Unwritten memory contains no usable number. Results have the precision of a CPU, and Triton kernels run in
Triton's interpreter.
"""

from tests.engine.emulated_cuda.device import EmulatedCuda
from tests.engine.emulated_cuda.lacking import lacking
from tests.engine.emulated_cuda.patches import emulated_cuda

__all__ = ["EmulatedCuda", "emulated_cuda", "lacking"]
