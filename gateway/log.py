"""Log lines of the gateway: what becomes of the process, and for debugging one per event in the life of a request."""

import logging

LOGGER = logging.getLogger("orcastream.gateway")


def log_event(message: str, *, level: int = logging.DEBUG, **fields: object) -> None:
    """Log `message` with `fields` as the record's extra attributes; empty ones are left out."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, message, extra={name: value for name, value in fields.items() if value is not None})
