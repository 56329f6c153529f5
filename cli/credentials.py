"""Server URLs for display, without user and password."""

import re

_USER_INFO = re.compile(r"^([\w+]+://)?.*@", re.DOTALL)
_PASSWORD = re.compile(r"(password=)[^&]*")


def without_credentials(url: str) -> str:
    """Return the URL with `***` in place of credentials; also for an invalid URL, because it appears in an error."""
    return _PASSWORD.sub(r"\1***", _USER_INFO.sub(r"\1***@", url))
