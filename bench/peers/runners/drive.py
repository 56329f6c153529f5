"""The loop for all systems: it submits requests as they arrive, and records the times of the output."""

import time
from collections import deque
from collections.abc import Sequence

from .protocol import Answer, Ask, System


def drive(system: System, asks: Sequence[Ask]) -> tuple[float, list[Answer]]:
    """Return the seconds from the start to the last token, and the answers in the order of the requests."""
    answers = [Answer() for _ in asks]
    due = deque(sorted(enumerate(asks), key=lambda one: one[1].arrival_s))
    begun_s = time.monotonic()
    while due or system.busy:
        while due and due[0][1].arrival_s <= time.monotonic() - begun_s:
            system.submit(*due.popleft())
        if not system.busy:
            time.sleep(max(0.0, begun_s + due[0][1].arrival_s - time.monotonic()))
            continue
        pieces = system.step()
        now_s = time.monotonic()
        for piece in pieces:
            at_s = now_s if piece.at_s is None else piece.at_s
            answers[piece.index].tokens.extend(piece.tokens)
            answers[piece.index].times_s.extend([at_s - begun_s] * len(piece.tokens))
    return max((answer.times_s[-1] for answer in answers if answer.times_s), default=0.0), answers
