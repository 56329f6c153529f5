"""Streams and events, which replace torch.cuda.Stream and torch.cuda.Event."""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from tests.engine.emulated_cuda import registry


class Stream:
    """A queue of work that runs in order, and only as far as a caller waits for it.

    The work items have numbers: 1 for the first, 2 for the second. The arguments `device` and `priority` exist because
    torch.cuda.Stream has them; both are ignored.
    """

    device = registry.DEVICE

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self._work: deque[Callable[[], object]] = deque()
        self._issued = self._done = 0
        self._lock = threading.RLock()
        if registry.is_registered():
            registry.current().streams.add(self)

    def add(self, work: Callable[[], object]) -> int:
        """Append `work` to the queue without running it. Return its number."""
        with self._lock:
            self._work.append(work)
            self._issued += 1
            return self._issued

    def run(self, until: int | None = None) -> None:
        """Run all work up to and including number `until`; by default, all work added before the call."""
        with self._lock, torch.inference_mode():
            last = self._issued if until is None else until
            while self._done < last:
                self._done += 1
                self._work.popleft()()

    def is_done(self, number: int) -> bool:
        """Return whether the work with this number has at least started."""
        return self._done >= number

    def synchronize(self) -> None:
        """Make the host wait for all work in the stream. Raises torch.AcceleratorError during a capture."""
        registry.current().waits("Stream.synchronize")
        self.run()

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Record `event`, by default a new one, at the end of the stream, and return it."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        """Make work that is added later run after `event`. The host does not wait."""
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        """Make work that is added later run after all present work of `stream`. The host does not wait."""
        self.wait_event(stream.record_event())


class Event:
    """A position in a stream, which the host or another stream can wait for."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timed = enable_timing
        self._place: tuple[Stream, int] | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Move the event to the end of `stream`, by default the current stream."""
        stream = stream or registry.current().current_stream()
        self._place = (stream, stream.add(lambda: None))

    def wait(self, stream: Stream | None = None) -> None:
        """Make later work of `stream`, by default the current one, run after the event, if it was ever recorded."""
        if self._place is not None:
            own, number = self._place
            (stream or registry.current().current_stream()).add(partial(own.run, number))

    def synchronize(self) -> None:
        """Make the host wait for the event. Raises torch.AcceleratorError during a capture."""
        registry.current().waits("Event.synchronize")
        if self._place is not None:
            own, number = self._place
            own.run(number)

    def query(self) -> bool:
        """Return whether all work before the event has run, without waiting; True if it was never recorded."""
        return self._place is None or self._place[0].is_done(self._place[1])

    def elapsed_time(self, end: "Event") -> float:
        """Return 0.5 as the milliseconds between two events.

        Raises ValueError unless both events measure time and were recorded; RuntimeError if the device has not reached
        `end`.
        """
        if not self._timed or not end._timed or self._place is None or end._place is None:
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not end.query():
            raise RuntimeError("CUDA error: device not ready")
        return 0.5
