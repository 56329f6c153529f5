"""Batches that this gateway cannot read: another version wrote them, or they are damaged."""

import logging
from collections.abc import Container

from orcastream.gateway.log import log_event


class UnreadableBatch(Exception):
    """Redis holds a batch in a format other than this version's; `why` gives the reason."""

    def __init__(self, batch_id: str, why: ValueError) -> None:
        super().__init__(f"the batch {batch_id!r} is not readable: {why}")
        self.id = batch_id
        self.why = why


class UnreadableBatches:
    """Logs each unreadable open batch once. Readable ones are unaffected."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, batch_id: str, why: Exception) -> None:
        """Log an unreadable batch."""
        if batch_id not in self._told:
            self._told.add(batch_id)
            log_event("batch not readable", level=logging.WARNING, batch=batch_id, why=why)

    def keep(self, open_ids: Container[str]) -> None:
        """Forget batches that are no longer open."""
        self._told = {batch_id for batch_id in self._told if batch_id in open_ids}
