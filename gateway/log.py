"""Log lines of the gateway: the process's life, and at debug level one line per event in the life of a request."""

import logging

LOGGER = logging.getLogger("orcastream.gateway")


def log_event(message: str, *, level: int = logging.DEBUG, **fields: object) -> None:
    """Log `message` with `fields` as the record's extra attributes; fields that are None are left out."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, message, extra={name: value for name, value in fields.items() if value is not None})
