"""One line per event in the life of a request: a name, then fields."""

import json
import logging

LOGGER = logging.getLogger("orcastream.gateway")


def log_event(name: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Log `name key=value ...`; values with spaces or signs are quoted, and `extra` carries them for handlers."""
    if LOGGER.isEnabledFor(level):
        shown = " ".join(f"{key}={_quoted(value)}" for key, value in fields.items() if value is not None)
        LOGGER.log(level, "%s %s", name, shown, extra={"event": name, "fields": fields})


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and all(char.isalnum() or char in "-_./:" for char in text) else json.dumps(text)
