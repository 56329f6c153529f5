"""Removes API keys that people put into URLs from messages and logs."""

import logging
import re
from typing import Final

_KEY: Final = re.compile(r"\b(?:orca_|sk-)[\w-]{16,}")
"""Text that looks like an API key, of this service or of one that somebody confused it with."""
_PATH: Final = 2
"""Index of the path with its query among the arguments of uvicorn's log record."""


class WithoutSecrets(logging.Filter):
    """Removes keys in paths, and queries, from uvicorn's access log: clients mistake them for headers and bodies."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, without secrets."""
        if isinstance(record.args, tuple) and len(record.args) > _PATH:
            path = str(record.args[_PATH]).partition("?")[0]
            record.args = (*record.args[:_PATH], without_keys(path), *record.args[_PATH + 1 :])
        return True


def without_keys(text: str) -> str:
    """Return a text from a URL without API keys."""
    return _KEY.sub("…", text)
