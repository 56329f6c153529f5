"""The KV cache: blocks, tables, tensors, size."""
