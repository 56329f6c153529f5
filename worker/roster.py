"""Every request that this worker has claimed and not yet ended."""

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence

from opentelemetry.trace import SpanContext

from orcastream.broker.entry import EntryRef
from orcastream.worker.choice import Choice
from orcastream.worker.running import Running


class Roster:
    """Running requests by queue entry, by id and by engine id. `changed` signals a free slot."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: most candidates of all requests together, including those waiting in the engine; may change."""
        self.capacity = capacity
        self.changed = asyncio.Event()
        self.first_deadline_ms = math.inf
        """No deadline is before this (the server's clock, Unix time)."""
        self._by_ref: dict[EntryRef, Running] = {}
        self._by_id: dict[str, Running] = {}
        self.by_engine_id: dict[str, tuple[Running, Sequence[Choice]]] = {}
        """The request of each engine id, and the sequences that it extends, by `TokenEvent.choice`."""

    def __len__(self) -> int:
        return len(self._by_ref)

    def __iter__(self) -> Iterator[Running]:
        return iter(list(self._by_ref.values()))

    def __contains__(self, ref: object) -> bool:
        return ref in self._by_ref

    @property
    def free(self) -> int:
        """Free slots: a request takes one for each of its candidates."""
        return max(0, self.capacity - sum(running.request.payload.num_candidates for running in self._by_ref.values()))

    def add(self, running: Running) -> None:
        """Register a claimed request; from now on it is found by its id, also for cancels.

        Of two entries with one id the one added last stays: the other's entry is gone, or is the later one.
        """
        self._by_ref[running.ref] = running
        self._by_id[running.id] = running
        self.first_deadline_ms = min(self.first_deadline_ms, running.request.deadline_ms)

    def look_for_first_deadline(self) -> None:
        """Recompute the first deadline without the requests that have left the roster."""
        self.first_deadline_ms = min((running.request.deadline_ms for running in self), default=math.inf)

    def remove(self, running: Running) -> None:
        """Remove a request that ended or belongs to another worker."""
        running.closed = True
        running.close_stream()
        if self._by_ref.get(running.ref) is running:
            del self._by_ref[running.ref]
        if self._by_id.get(running.id) is running:
            del self._by_id[running.id]
        self.withdraw(running.engine_ids())
        if running.adapter is not None:
            running.adapter.release()
        self.changed.set()

    def by_ref(self, ref: EntryRef) -> Running | None:
        """Return the running request of that queue entry, if it is here."""
        return self._by_ref.get(ref)

    def by_id(self, request_id: str) -> Running | None:
        """Return the running request with that id, if it is here."""
        return self._by_id.get(request_id)

    def submitted(self, running: Running) -> None:
        """Register the engine ids of `running`, so that engine output reaches it."""
        for engine_id, candidates in running.candidates().items():
            self.by_engine_id[engine_id] = (running, candidates)

    def withdraw(self, engine_ids: Iterable[str]) -> None:
        """Ignore everything that the engine still delivers under these ids."""
        for engine_id in engine_ids:
            self.by_engine_id.pop(engine_id, None)

    def span_context(self, engine_id: str) -> SpanContext | None:
        """Return the span of the epoch that an engine id belongs to; None if there is none. Any thread may ask."""
        owner = self.by_engine_id.get(engine_id)
        span = None if owner is None else owner[0].span
        return None if span is None else span.context
