"""The protocol against Redis: one implementation for producers, gateways and workers."""
