"""The wire contract: what travels through Redis, and nothing that does I/O.

`asyncapi.yaml` in this folder states the same for other languages; a test keeps the two in step.
"""
