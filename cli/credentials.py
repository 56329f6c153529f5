"""Addresses of servers as they may be shown: without user and password."""

import re

_USER_INFO = re.compile(r"^([\w+]+://)?.*@", re.DOTALL)
_PASSWORD = re.compile(r"(password=)[^&]*")


def without_credentials(url: str) -> str:
    """The URL with `***` in place of what must not be shown; also one that is none, for it stands in an error."""
    return _PASSWORD.sub(r"\1***", _USER_INFO.sub(r"\1***@", url))
