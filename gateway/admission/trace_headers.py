"""W3C trace context in the headers of a request."""

import re
from collections.abc import Mapping
from typing import Final

from orcastream.schemas.limits import MAX_TRACE_HEADER_LENGTH

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_headers(headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return traceparent and tracestate as they may be forwarded; drops invalid headers, as the standard requires."""
    parent = headers.get("traceparent", "").strip()
    if not _TRACEPARENT.fullmatch(parent):
        return None, None
    state = headers.get("tracestate", "").strip()
    return parent, state if 0 < len(state) <= MAX_TRACE_HEADER_LENGTH and state.isascii() else None
