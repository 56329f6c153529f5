"""Leaders of groups are found by their known tokens."""

from orcastream.engine.request import RequestState
from orcastream.engine.schedule.leaders import GroupLeaders
from tests.engine.schedule.pretended import request


def test_unstarted_requests_with_the_same_tokens() -> None:
    leaders = GroupLeaders()
    same, other, begun = (request((token,) * 3, group="g") for token in (1, 2, 1))
    begun.state = RequestState.INITIATION
    for each in (same, other, begun, request((1,) * 3, group="another"), request((1,) * 3)):
        leaders.add(each)
    assert list(leaders.waiting(request((1,) * 3, group="g"))) == [same]
    assert list(leaders.waiting(request((1,) * 3))) == []
    assert len(leaders) == 2
    for each in (same, other, begun, other):
        leaders.remove(each)
    assert len(leaders) == 1
