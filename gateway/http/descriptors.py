"""The number of files and sockets that this process may have open."""

import logging
import resource
from typing import Final

from orcastream.gateway.log import log_event

_BESIDE: Final = 128
"""Descriptors for Redis, files and listening sockets."""


def allow_descriptors(connections: int) -> None:
    """Raise this process's soft limit to allow `connections` connections; log a warning if the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _BESIDE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log_event("fewer connections than max_connections", level=logging.WARNING, descriptors=allowed, wanted=wanted)
