"""Who computes the prompt that several requests share."""

from collections.abc import Iterator

from orcastream.engine.request import Request, RequestState


class GroupLeaders:
    """By group, its unfinished requests that follow nobody."""

    def __init__(self) -> None:
        self._of: dict[str, list[Request]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def waiting(self, request: Request) -> Iterator[Request]:
        """Those of its group, and of its adapter, that have not begun and know the same tokens."""
        for other in self._of.get(request.group or "", ()):
            is_equal = other.tokens == request.tokens and other.adapter is request.adapter
            if other.state is RequestState.WAITING and is_equal:
                yield other

    def add(self, request: Request) -> None:
        """`request` follows nobody."""
        if request.group is not None:
            self._of.setdefault(request.group, []).append(request)

    def remove(self, request: Request) -> None:
        """`request` has ended."""
        leaders = self._of.get(request.group or "", [])
        if request in leaders:
            leaders.remove(request)
            if not leaders:
                del self._of[request.group or ""]
