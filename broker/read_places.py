"""Where one XREAD reads: each log once, unless its subscriptions have come to different positions in it."""

from collections.abc import Mapping, Sequence
from typing import Any

from orcastream.broker.followed import FollowedLog
from orcastream.schemas.events import EventId


def places(following: Sequence[FollowedLog]) -> Sequence[FollowedLog]:
    """Return one of those that are at the same position of a log; those of one log in the order of their positions."""
    num_logs = len({one.key for one in following})
    if num_logs == len(following):
        return following
    each_once = list({(one.key, one.last_id): one for one in following}.values())
    return each_once if num_logs == len(each_once) else sorted(each_once, key=_position)


def read_from(asking: Sequence[FollowedLog]) -> Mapping[bytes, Sequence[bytes]]:
    """Return the read positions of each log, by key, in the order of `asking`."""
    read = {one.key: [one.last_id] for one in asking}
    if len(read) < len(asking):
        for positions in read.values():
            positions.clear()
        for one in asking:
            read[one.key].append(one.last_id)
    return read


def begin_of(entries: Sequence[Any], positions: Sequence[bytes]) -> bytes:
    """Return that of a log's read positions, lowest first, which these entries follow."""
    if len(positions) == 1:
        return positions[0]
    first = EventId.parse(entries[0][0])
    return [position for position in positions if EventId.parse(position) < first][-1]


def _position(followed: FollowedLog) -> EventId:
    return EventId.parse(followed.last_id)
