"""The kernels of the Triton backend; only `engine/attention/triton_backend.py` imports them, for triton is optional."""
