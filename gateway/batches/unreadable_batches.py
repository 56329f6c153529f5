"""Batches that this gateway cannot read."""

import logging

from orcastream.gateway.log import log_event


class UnreadableBatches:
    """Tells once of each: another version wrote it, or it is damaged. The others go on."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, batch_id: str, why: Exception) -> None:
        """One was met."""
        if batch_id not in self._told:
            self._told.add(batch_id)
            log_event("batch not readable", level=logging.WARNING, batch=batch_id, why=why)
