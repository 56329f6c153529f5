"""The kernels between the matrix products of a decoder; only `engine/model/triton_decoder.py` imports them, as triton
is optional."""
