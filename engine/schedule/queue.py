"""Waiting requests in the order of a key that does not change while they wait."""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any

from engine.request import Request


class WaitingQueue:
    """A heap by (key, arrival): adding and taking cost O(log n), looking at the first O(1).

    What is removed from the middle stays in the heap as a hole until it comes to the front.
    """

    def __init__(self, key: Callable[[Request], Any] | None = None) -> None:
        """By arrival alone without `key`."""
        self._key = key or (lambda request: 0)
        self._heap: list[tuple[Any, int, Request]] = []
        self._members: set[int] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        """In no particular order."""
        return (request for _, arrival, request in self._heap if arrival in self._members)

    def push(self, request: Request) -> None:
        """`request` waits from now on."""
        self._members.add(request.arrival)
        heappush(self._heap, (self._key(request), request.arrival, request))

    def head(self) -> Request | None:
        """The first; None: nobody waits."""
        while self._heap:
            _, arrival, request = self._heap[0]
            if arrival in self._members:
                return request
            heappop(self._heap)
        return None

    def remove(self, request: Request) -> None:
        """`request` waits no more."""
        self._members.remove(request.arrival)
        if self._heap[0][1] == request.arrival:
            heappop(self._heap)
