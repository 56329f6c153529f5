"""The engine's thread: takes new requests, runs one iteration, delivers the events, repeats."""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from orcastream.engine import IterationRecord, OrcaEngine, PromptEvent, Request, TokenEvent
from orcastream.schemas.errors import InvalidRequest
from orcastream.worker.awake_clock import AwakeClock

log = logging.getLogger("orcastream.worker")

_A_MOMENT_S = 1e-4
_HESITATION_S = 1.0
_LONGEST_GAP_S = 1.0
"""The longest interval between two calls of `stalled_for_s`; the process counts as stopped for the rest."""
_TIMES_THE_SLOWEST = 4
_FORGETTING = 0.99
"""Decay per iteration: the slowest iteration's duration is forgotten within some hundreds of iterations."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine refused a request."""

    request_id: str
    error: InvalidRequest


class EngineFailed(RuntimeError):
    """The engine ended with an error that no single request caused; the process cannot continue."""


EngineOutput = TokenEvent | PromptEvent | Refused
Deliver = Callable[[list[EngineOutput]], None]
Iterated = Callable[[IterationRecord], None]


class EngineLoop(threading.Thread):
    """Runs `engine.step()` while there is work and sleeps while there is none.

    After each iteration this thread calls each of `listeners`, while all requests of the batch are still running, and
    then `deliver`; they must not block. `deliver` is also called, with nothing, when no iteration follows. If another
    iteration follows at once and nobody waits for a first token, `deliver` is called when its forward pass begins: the
    event loop, which it wakes, would otherwise compete for the interpreter with the engine's preparations. After a
    first token, for which somebody does wait, the engine pauses for a moment, so that the event loop gets the
    interpreter and a core: it would wait three times as long for them. At most `max_unpublished` tokens may be
    delivered and not acknowledged by `published()`: beyond that the engine pauses, so that a slow Redis slows the
    worker down instead of filling its memory.
    """

    def __init__(
        self,
        engine: OrcaEngine,
        deliver: Deliver,
        *,
        max_unpublished: int,
        lease_s: float = math.inf,
        listeners: Sequence[Iterated] = (),
    ) -> None:
        """`lease_s`: an iteration that takes longer has lost its requests."""
        super().__init__(name="engine", daemon=True)
        self._lease_s = lease_s
        self._engine = engine
        self._listeners = listeners
        self._deliver = deliver
        self._max_unpublished = max_unpublished
        self._changed = threading.Condition()
        self._submitted: list[Request] = []
        self._cancelled: list[str] = []
        self._policy: str | None = None
        self._unpublished = 0
        self._stopping = False
        self._isolated: Collection[str] = ()
        self._paused = False
        self.alone: Collection[str] = ()
        """The requests that the current iteration computes alone; empty: it computes all."""
        self.plans = False
        """Whether requests that were taken may not be in a plan yet. Any thread may read this."""
        self._busy = False
        self._awake = AwakeClock(_LONGEST_GAP_S)
        self._progress_at = self._awake()
        self._slowest_s = 0.0
        self._held: list[EngineOutput] | None = None
        """The output of the last iteration, if not yet delivered."""
        self.failure: BaseException | None = None
        self.iterations = 0

    def submit(self, requests: Sequence[Request], *, alone: bool = False) -> None:
        """Add `requests` to the pool before the next iteration; `alone`: compute no others until `release`, also when
        these have ended.
        """
        with self._changed:
            self._submitted.extend(requests)
            if alone:
                self._isolated, self._paused = frozenset(request.id for request in requests), False
            self._changed.notify()

    def pause(self) -> None:
        """Begin no iteration until `submit` with `alone`, `resume` or `release`; once not `busy`, the last ended, also
        one that the device computed ahead.
        """
        with self._changed:
            self._paused = True
            self._changed.notify()

    def resume(self) -> None:
        """Continue after `pause`."""
        with self._changed:
            self._paused = False
            self._changed.notify()

    def release(self) -> None:
        """Resume all requests from the next iteration on."""
        with self._changed:
            self._isolated, self._paused = (), False
            self._changed.notify()

    def cancel(self, request_ids: Sequence[str]) -> None:
        """Drop requests before the next iteration; events already under way may still be delivered."""
        with self._changed:
            self._cancelled.extend(request_ids)
            self._changed.notify()

    def switch_policy(self, policy: str) -> None:
        """Use another scheduling policy, which must exist, from the next iteration on."""
        with self._changed:
            self._policy = policy
            self._changed.notify()

    def published(self, num_events: int) -> None:
        """Record that `num_events` delivered events have been processed."""
        with self._changed:
            self._unpublished -= num_events
            self._changed.notify()

    @property
    def unpublished(self) -> int:
        """Delivered events that have not been processed. Any thread may ask."""
        return self._unpublished

    @property
    def num_submitted(self) -> int:
        """Requests that the engine takes before its next iteration. Any thread may ask."""
        return len(self._submitted)

    def stop(self) -> None:
        """End after the current iteration. Does not wait: `join()` does."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def check(self) -> None:
        """Raise EngineFailed if the thread has died of an error."""
        if self.failure is not None:
            raise EngineFailed(type(self.failure).__name__) from self.failure

    def stalled_for_s(self) -> float:
        """Return the seconds since the engine last made progress, without those in which the whole process was
        stopped; 0 while it has nothing to do or waits for the publisher, unless it has failed. Call at least once a
        second.
        """
        now = self._awake()
        return max(0.0, now - self._progress_at) if self._busy else 0.0

    @property
    def busy(self) -> bool:
        """Whether an iteration is under way or about to be. Any thread may ask."""
        return self._busy or bool(self._submitted) or (self._paused and self._engine.in_flight)

    @property
    def hesitates(self) -> bool:
        """Whether the current iteration takes more than a second and either much longer than any recent one, or longer
        than a lease.
        """
        return self.stalled_for_s() > max(_HESITATION_S, min(_TIMES_THE_SLOWEST * self._slowest_s, self._lease_s))

    def run(self) -> None:
        """Run the thread's body; a failure of the engine itself ends it and is stored in `failure`."""
        try:
            while self._wait_for_work():
                self._iterate()
        except BaseException as error:
            self.failure = error
            self._busy = True  # it makes no progress any more
        finally:
            self._let_go()
            self._deliver([])

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not self._stopping and not self._can_run():
                if self._busy:
                    self._busy = False
                    self._let_go()  # another iteration was about to begin, until the pause
                    self._deliver([])  # no iteration follows: wake those that wait for one
                self._changed.wait()
            if not self._busy:
                self._busy, self._progress_at = True, self._awake()
            return not self._stopping

    def _can_run(self) -> bool:
        if self._submitted or self._cancelled or self._policy is not None:
            return True
        return self._can_step()

    def _can_step(self) -> bool:
        if self._paused:
            return self._engine.in_flight  # the last iteration ends whatever is unpublished
        return self._engine.has_work and self._unpublished < self._max_unpublished

    def _iterate(self) -> None:
        with self._changed:
            submitted, self._submitted = self._submitted, []
            cancelled, self._cancelled = self._cancelled, []
            policy, self._policy = self._policy, None
            self.alone, self.plans = self._isolated, True
        self._engine.isolate(self.alone)
        if policy is not None:
            self._engine.switch_policy(policy)
        output: list[EngineOutput] = []
        tokens: Sequence[TokenEvent] = ()
        for request in submitted:
            try:
                self._engine.submit(request)
            except InvalidRequest as error:
                output.append(Refused(request.id, error))
        for request_id in cancelled:
            self._engine.cancel(request_id)
        with self._changed:
            if self.alone and self._isolated is self.alone and not self._engine.isolates:
                self._paused = True  # what it computes alone has ended: until the release
            stepped, paused = self._can_step(), self._paused
        before = self._engine.last_iteration
        if stepped:
            self._engine.call_before_forward(self._forward_begins)
            tokens = self._engine.finish_launched() if paused else self._engine.step()
            output.extend(self._engine.prompt_events)
            output.extend(tokens)
            self.iterations += 1
        now = self._awake()
        self._slowest_s = max(_FORGETTING * self._slowest_s, now - self._progress_at)
        self._progress_at, self.alone, self.plans = now, (), False
        with self._changed:
            self._unpublished += len(output)
        last = self._engine.last_iteration
        if last is not None and last is not before:  # a step may end none: with `overlap` the first launches one
            self._tell(last)
        self._let_go()  # the previous iteration's output, if this one had no forward pass
        self._held = output
        begins_an_answer = _begins_an_answer(tokens)
        if begins_an_answer or not self._can_run():
            self._let_go()
        if begins_an_answer:
            time.sleep(_A_MOMENT_S)

    def _forward_begins(self) -> None:
        self.plans = False
        self._let_go()

    def _let_go(self) -> None:
        """Deliver the held output."""
        held, self._held = self._held, None
        if held is not None:
            self._deliver(held)

    def _tell(self, record: IterationRecord) -> None:
        """Drop a listener that fails: an observer must not stop the engine."""
        for listener in self._listeners:
            try:
                listener(record)
            except Exception:
                log.exception("a listener of the engine failed and is left out from now on")
                self._listeners = [one for one in self._listeners if one is not listener]


def _begins_an_answer(tokens: Sequence[TokenEvent]) -> bool:
    """Whether one of the tokens is a request's first."""
    return any(event.position == 0 for event in tokens)
