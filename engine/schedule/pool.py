"""All requests that are not finished."""

from bisect import insort

from engine.errors import IntegrityError
from engine.request import Request, RequestState


class RequestPool:
    """Orca's request pool: waiting and running requests, each in order of arrival.

    `running` holds what has been admitted (INITIATION or INCREMENT), `waiting` the rest; a preempted request returns
    to its place by arrival, so that nobody overtakes it for having been unlucky.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Request] = {}
        self._arrivals = 0
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_id

    def get(self, request_id: str) -> Request | None:
        """The unfinished request of that id."""
        return self._by_id.get(request_id)

    def add(self, request: Request) -> None:
        """A new request arrives."""
        request.arrive(self._arrivals)
        self._arrivals += 1
        self._by_id[request.id] = request
        self.waiting.append(request)

    def admit(self, request: Request) -> None:
        """WAITING → INITIATION."""
        request.initiate()
        self.waiting.remove(request)
        insort(self.running, request, key=_arrival)

    def put_back(self, request: Request) -> None:
        """Preempted: running → waiting. Its blocks must be free."""
        request.preempt()
        self.running.remove(request)
        insort(self.waiting, request, key=_arrival)

    def remove(self, request: Request) -> None:
        """Take an unfinished request out; its state has not changed yet."""
        del self._by_id[request.id]
        (self.waiting if request.state is RequestState.WAITING else self.running).remove(request)

    def check_integrity(self) -> None:
        """IntegrityError unless every request stands in the one list that its state names, in order of arrival."""
        for members, states in (
            (self.waiting, {RequestState.WAITING}),
            (self.running, {RequestState.INITIATION, RequestState.INCREMENT}),
        ):
            for request in members:
                if request.state not in states:
                    raise IntegrityError(f"request {request.id!r} is {request.state} in the wrong list")
                if not request.num_uncomputed:
                    raise IntegrityError(f"request {request.id!r} is unfinished and has nothing to compute")
            arrivals = [request.arrival for request in members]
            if arrivals != sorted(set(arrivals)):
                raise IntegrityError(f"requests out of order of arrival: {arrivals}")
        if sorted(map(_arrival, [*self.waiting, *self.running])) != sorted(map(_arrival, self._by_id.values())):
            raise IntegrityError("the lists and the index by id hold different requests")


def _arrival(request: Request) -> int:
    return request.arrival
