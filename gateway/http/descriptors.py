"""The number of files and sockets that this process may have open."""

import logging
import resource
from typing import Final

from orcastream.gateway.log import log_event

_BESIDE: Final = 128
"""Descriptors for Redis, files and listening sockets."""


def allow_descriptors(connections: int) -> int:
    """Raise this process's soft limit to allow `connections` connections; return how many it allows.

    If the hard limit is lower, log a warning: clients must not take the descriptors that the connections to Redis need.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _BESIDE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        connections = min(connections, max(allowed - _BESIDE, allowed // 2))
        log_event(
            "fewer connections than max_connections",
            level=logging.WARNING,
            connections=connections,
            descriptors=allowed,
            wanted=wanted,
        )
    return connections
