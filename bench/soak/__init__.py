"""A long run under steady load, which checks that memory, descriptors and latency do not grow."""
