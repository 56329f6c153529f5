"""Request-level batching."""

from collections.abc import Sequence

from orcastream.engine.errors import IntegrityError
from orcastream.engine.request import Request
from orcastream.engine.schedule.heap import RequestHeap
from orcastream.engine.schedule.policies.base import Policy, PolicyTools, register


@register("static")
class RequestLevelBatching(Policy):
    """The baseline of benchmarks: what servers did before Orca (OSDI'22, section 2).

    A batch is formed when nothing runs, of those who wait, by arrival: as many as there are places, and as fit into the
    cache even if each comes to its max_tokens. Nobody joins until all of it have ended, so a place whose request ends
    early stays empty. Prefills go in chunks of the token budget like everybody's. Kinder than the original in one way:
    who ends early leaves at once, and is not computed, or kept waiting, to the end of the batch.

    Nothing starves, and nobody is preempted, except where the choices of one prompt, which join together, are too many
    for the cache.
    """

    forms_batches = True

    def __init__(self, tools: PolicyTools) -> None:
        super().__init__(tools)
        self._waiting = RequestHeap()
        self._batch = RequestHeap()
        """Members that have not joined yet."""
        self._members: set[int] = set()

    def push(self, request: Request) -> None:
        """For the next batch, unless it belongs to this one."""
        (self._batch if request.arrival in self._members else self._waiting).push(request)

    def head(self) -> Request | None:
        """The earliest arrival, those of the present batch first."""
        return self._batch.head() or self._waiting.head()

    def remove(self, request: Request) -> None:
        """See the base class."""
        (self._batch if request.arrival in self._members else self._waiting).remove(request)

    def may_join(self, request: Request, running: Sequence[Request]) -> bool:
        """Members of the batch; when it is over, the first of the next one."""
        if not running and not self._batch:
            self._form()
        return request.arrival in self._members and self.memory.fits(request, running)

    def _form(self) -> None:
        """The next batch; of one at least, whoever it is."""
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
        """The queues hold those who wait."""
        if {request.id for queue in (self._waiting, self._batch) for request in queue} != {each.id for each in waiting}:
            raise IntegrityError("the policy's queues and the waiting requests differ")
