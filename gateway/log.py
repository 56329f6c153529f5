"""One line per event in the life of a request: a short message, then fields."""

import logging

LOGGER = logging.getLogger("orcastream.gateway")


def log_event(message: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Log `message` with `fields` as the record's extra attributes; empty ones are left out."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, message, extra={name: value for name, value in fields.items() if value is not None})
