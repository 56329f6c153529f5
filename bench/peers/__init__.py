"""The engine beside its peers: the same model and requests, each system in a process and an environment of its own."""
