"""The kernels and the engine on a GPU."""
