"""The kernels of the Triton backend; only `engine/attention/triton_backend.py` imports them, as triton is optional."""
