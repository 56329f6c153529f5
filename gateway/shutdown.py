"""How a gateway stops: first it takes nothing new, then open streams end."""

import asyncio


class Shutdown:
    """Shared by all that has to know."""

    def __init__(self) -> None:
        self.stopping = False
        """No new requests are taken."""
        self.ending = asyncio.Event()
        """Set when open streams are to end."""

    def begin(self, grace_s: float) -> None:
        """Take nothing new; open streams get `grace_s` to end by themselves."""
        self.stopping = True
        asyncio.get_running_loop().call_later(grace_s, self.ending.set)

    def end_now(self) -> None:
        """Both at once."""
        self.stopping = True
        self.ending.set()
