"""The kernels between the matrix products of a decoder; they are imported when first called, as triton is optional."""
