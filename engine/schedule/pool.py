"""The pool of all unfinished requests."""

from bisect import insort

from orcastream.engine.errors import IntegrityError
from orcastream.engine.request import Request, RequestState


class RequestPool:
    """Orca's request pool: waiting requests, running requests, and followers of either.

    `running` holds admitted requests (INITIATION or INCREMENT) in order of arrival, `waiting` the others by id. A
    follower waits for its leader to compute the tokens that both know, and is in neither.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Request] = {}
        self._arrivals = 0
        self._following: dict[str, Request] = {}
        self.waiting: dict[str, Request] = {}
        self.running: list[Request] = []
        self.places_held = 0
        """Places in the batch that running requests reserve for the requests that will split off from them."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_id

    @property
    def places_taken(self) -> int:
        """Places in the batch that are not free."""
        return len(self.running) + self.places_held

    @property
    def num_waiting(self) -> int:
        """Unfinished requests without a place, not counting followers of a running request, which reserves theirs.

        Any thread may read this; during a change it may be off by the requests that change.
        """
        without = len(self._by_id) - len(self.running)
        if self._following:
            without -= sum(len(each.followers) for each in list(self.running))
        return max(0, without)

    @property
    def prompt_tokens_left(self) -> int:
        """Known tokens that are not in the cache, of waiting requests and running prefills. Any thread may read it."""
        prefills = [each for each in list(self.running) if each.state is RequestState.INITIATION]
        return sum([each.num_uncomputed for each in (*prefills, *list(self.waiting.values()))])

    def get(self, request_id: str) -> Request | None:
        """Return the unfinished request with that id, or None."""
        return self._by_id.get(request_id)

    def leader_of(self, request: Request) -> Request | None:
        """Return the request that `request` follows, or None."""
        return self._following.get(request.id)

    def add(self, request: Request, leader: Request | None = None) -> None:
        """Add a new request, as a follower of `leader` (which waits) or on its own."""
        request.arrive(self._arrivals)
        self._arrivals += request.places  # a rank for each hypothesis of a beam search
        self._by_id[request.id] = request
        if leader is None:
            self.waiting[request.id] = request
        else:
            leader.followers.append(request)
            self._following[request.id] = leader

    def run(self, request: Request) -> None:
        """Move a waiting request, which has been admitted, to the running ones."""
        del self.waiting[request.id]
        self.places_held += request.places - 1
        insort(self.running, request, key=_arrival)

    def put_back(self, request: Request) -> None:
        """Move a running request, which was preempted, to the waiting ones."""
        self.running.remove(request)
        self.places_held -= request.places - 1
        self.waiting[request.id] = request

    def split_off(self, follower: Request) -> None:
        """Let `follower` run on its own: its leader has computed the tokens that both know."""
        self._leave(follower, self._following[follower.id])
        insort(self.running, follower, key=_arrival)

    def begin_search(self, request: Request) -> None:
        """Turn a running beam search into one hypothesis; its reserved places are free for `spawn`."""
        self.places_held -= request.places - 1
        request.hypotheses = [request]

    def spawn(self, hypothesis: Request, root: Request, number: int) -> None:
        """Add hypothesis `number` of the running beam search `root`, in a place that was reserved for it.

        It comes right after the search in the order of arrival: no later request is ahead of one if it is preempted.
        """
        hypothesis.arrive_with(root, number)
        self._by_id[hypothesis.id] = hypothesis
        insort(self.running, hypothesis, key=_arrival)

    def _leave(self, follower: Request, leader: Request) -> None:
        del self._following[follower.id]
        leader.followers.remove(follower)
        if leader.state is not RequestState.WAITING:
            self.places_held -= 1

    def remove(self, request: Request) -> list[Request]:
        """Remove an unfinished request without changing its state; return its followers, which now wait alone."""
        del self._by_id[request.id]
        leader = self._following.get(request.id)
        if leader is not None:
            self._leave(request, leader)
            return []
        orphans = list(request.followers)
        if request.state is RequestState.WAITING:
            del self.waiting[request.id]
        else:
            self.running.remove(request)
            self.places_held -= request.places - 1
        request.followers.clear()
        for orphan in orphans:
            del self._following[orphan.id]
            self.waiting[orphan.id] = orphan
        return orphans

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every request is in exactly the collection that its state names."""
        for members, states in (
            (self.waiting.values(), {RequestState.WAITING}),
            (self._following.values(), set(RequestState) - {RequestState.FINISHED}),
            (self.running, {RequestState.INITIATION, RequestState.INCREMENT}),
        ):
            for request in members:
                if request.state not in states:
                    raise IntegrityError(f"request {request.id!r} is {request.state} in the wrong place")
        arrivals = [request.arrival for request in self.running]
        if arrivals != sorted(set(arrivals)):
            raise IntegrityError(f"running requests out of order of arrival: {arrivals}")
        if self.places_held != sum(request.places - 1 for request in self.running):
            raise IntegrityError(f"{self.places_held} places are held for requests that split")
        everyone = [*self.waiting.values(), *self.running]
        everyone += [follower for request in list(everyone) for follower in request.followers]
        if sorted(map(_arrival, everyone)) != sorted(map(_arrival, self._by_id.values())):
            raise IntegrityError("waiting, running and following requests are not all there are")


def _arrival(request: Request) -> int:
    return request.arrival
