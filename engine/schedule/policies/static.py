"""The static policy: request-level batching, a baseline."""

from collections.abc import Sequence

from orcastream.engine.errors import IntegrityError
from orcastream.engine.request import Request
from orcastream.engine.schedule.heap import RequestHeap
from orcastream.engine.schedule.policies.base import Policy, PolicyTools, register


@register("static")
class RequestLevelBatching(Policy):
    """The baseline for benchmarks: batching as servers did before Orca (OSDI'22, section 2).

    When nothing runs, a batch is formed from the waiting requests by arrival: as many as there are places, and as fit
    into the cache even if each reaches its max_tokens. No other request joins until all of them have ended, so a place
    whose request ends early stays empty. Prefills run in chunks of the token budget, as in any policy. One difference
    favors the baseline: a request that ends early leaves at once, and is neither computed nor delayed until the end of
    the batch.

    Nothing starves, and no request is preempted, unless the choices of one prompt, which join together, do not fit into
    the cache.
    """

    forms_batches = True

    def __init__(self, tools: PolicyTools) -> None:
        super().__init__(tools)
        self._waiting = RequestHeap()
        self._batch = RequestHeap()
        """Members that have not joined yet."""
        self._members: set[int] = set()

    def push(self, request: Request) -> None:
        """Queue `request` for the next batch, unless it belongs to the current one."""
        (self._batch if request.arrival in self._members else self._waiting).push(request)

    def head(self) -> Request | None:
        """Return the earliest arrival, members of the current batch first."""
        return self._batch.head() or self._waiting.head()

    def remove(self, request: Request) -> None:
        """See the base class."""
        (self._batch if request.arrival in self._members else self._waiting).remove(request)

    def may_join(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether `request` is a member and fits; forms the next batch if the current one is over."""
        if not running and not self._batch:
            self._form()
        return request.arrival in self._members and self.memory.fits(request)

    def _form(self) -> None:
        """Form the next batch, of at least one request."""
        self._members.clear()
        places, blocks = 0, [0] * len(self.memory.cache.groups)
        while (request := self._waiting.head()) is not None:
            places += request.places
            most = self.memory.most_blocks([request, *request.followers])
            blocks = [a + b for a, b in zip(blocks, most, strict=True)]
            if self._members and (places > self.max_batch_size or not self.memory.has_blocks(blocks)):
                return
            self._waiting.remove(request)
            self._members.add(request.arrival)
            self._batch.push(request)

    def ended(self, request: Request) -> None:
        """See the base class."""
        self._members.discard(request.arrival)

    def check_integrity(self, waiting: Sequence[Request], running: Sequence[Request]) -> None:
        """Raise IntegrityError unless the queues hold exactly the waiting requests."""
        if {request.id for queue in (self._waiting, self._batch) for request in queue} != {each.id for each in waiting}:
            raise IntegrityError("the policy's queues and the waiting requests differ")
