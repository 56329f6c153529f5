"""API keys that people put into URLs are neither told nor logged."""

import logging
import re
from typing import Final

_KEY: Final = re.compile(r"\b(?:orca_|sk-)[\w-]{16,}")
"""What looks like an API key, of ours or of a service that somebody has mistaken this one for."""
_PATH: Final = 2
"""Where uvicorn puts the path with its query among a record's arguments."""


class WithoutSecrets(logging.Filter):
    """Leaves out of uvicorn's access log keys in paths, and queries, which clients mistake for bodies and headers."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, changed."""
        if isinstance(record.args, tuple) and len(record.args) > _PATH:
            path = str(record.args[_PATH]).partition("?")[0]
            record.args = (*record.args[:_PATH], without_keys(path), *record.args[_PATH + 1 :])
        return True


def without_keys(text: str) -> str:
    """A text that came in a URL, as it may be told."""
    return _KEY.sub("…", text)
