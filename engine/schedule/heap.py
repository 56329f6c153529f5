"""A heap of requests, ordered by a key that does not change while they are in it."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from orcastream.engine.request import Request

_SPARE = 64
"""Number of holes that are not worth cleaning up."""


class RequestHeap:
    """A heap by (key, arrival): push and remove cost O(log n), head O(1), all amortized.

    A request removed from the middle leaves a hole, until the hole reaches the front or holes are the majority. A hole
    does not keep its request in memory.
    """

    def __init__(self, key: Callable[[Request], Any] | None = None) -> None:
        """Order requests by `key`, or by arrival alone without one."""
        self._key = key or (lambda request: 0)
        self._heap: list[tuple[Any, int]] = []
        self._members: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests in no particular order."""
        return iter(self._members.values())

    def push(self, request: Request) -> None:
        """Add `request`."""
        self._members[request.arrival] = request
        heappush(self._heap, (self._key(request), request.arrival))

    def head(self) -> Request | None:
        """Return the first request, or None if the heap is empty."""
        while self._heap:
            request = self._members.get(self._heap[0][1])
            if request is not None:
                return request
            heappop(self._heap)
        return None

    def remove(self, request: Request) -> None:
        """Remove `request`."""
        del self._members[request.arrival]
        if self._heap[0][1] == request.arrival:
            heappop(self._heap)
        elif len(self._heap) > 2 * len(self._members) + _SPARE:
            kept = {entry[1]: entry for entry in self._heap if entry[1] in self._members}
            self._heap = list(kept.values())
            heapify(self._heap)
