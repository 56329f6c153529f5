"""The worker: one process per model replica that joins the broker to an engine.

Redis I/O lives on an asyncio loop, the engine in a thread of its own, with a mailbox each way (`engine_loop`).
"""
