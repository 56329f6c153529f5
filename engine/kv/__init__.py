"""The KV cache: blocks, block tables, tensors and size."""
