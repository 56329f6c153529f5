"""The worker: one process per model replica that connects the broker to an engine.

Redis I/O runs on an asyncio loop, the engine in its own thread, with a mailbox in each direction (`engine_loop`).
"""
