"""The wire contract: everything that travels through Redis. Nothing in this package does I/O.

`asyncapi.yaml` in this folder states the same contract for other languages; a test keeps the two in step.
"""
