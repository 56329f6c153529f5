"""A long run under steady load: do memory, descriptors and latency stay what they were?"""
