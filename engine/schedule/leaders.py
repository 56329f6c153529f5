"""Group leaders: the requests that compute a prompt shared by several."""

from collections.abc import Iterator

from orcastream.engine.request import Request, RequestState


class GroupLeaders:
    """The unfinished requests of each group that follow no other."""

    def __init__(self) -> None:
        self._of: dict[str, list[Request]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def waiting(self, request: Request) -> Iterator[Request]:
        """Yield waiting requests with the group, tenant, cache salt, adapter and known tokens of `request`."""
        for other in self._of.get(request.group or "", ()):
            may_share = other.chain.root == request.chain.root and other.adapter is request.adapter
            if other.state is RequestState.WAITING and may_share and other.tokens == request.tokens:
                yield other

    def add(self, request: Request) -> None:
        """Add `request`, which follows no other."""
        if request.group is not None:
            self._of.setdefault(request.group, []).append(request)

    def remove(self, request: Request) -> None:
        """Remove `request`, which has ended."""
        leaders = self._of.get(request.group or "", [])
        if request in leaders:
            leaders.remove(request)
            if not leaders:
                del self._of[request.group or ""]
