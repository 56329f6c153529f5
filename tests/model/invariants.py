"""What must hold in every state: the rules of the design, stated for the model."""

from collections.abc import Callable

from tests.model.state import LENGTH, State, fold


def published_is_final(state: State) -> bool:
    """The log holds each position once, in order, without a gap, unless Redis lost data."""
    position = 0
    for event in state.redis.log:
        if event.kind == "started":
            continue
        if event.position != position and not state.has_lost:
            return False
        position = event.position + len(event.tokens)
    return True


def nothing_beyond_the_end(state: State) -> bool:
    """No answer is too long, and only a fence may follow the terminal."""
    log = state.redis.log
    ends = [number for number, event in enumerate(log) if event.kind == "end"]
    behind = log[ends[0] + 1 :] if ends else ()
    return len(fold(log)[0]) <= LENGTH and all(event.kind == "started" for event in behind)


def one_terminal(state: State) -> bool:
    """There is at most one terminal."""
    return sum(event.kind == "end" for event in state.redis.log) <= 1


def terminal_before_ack(state: State) -> bool:
    """A deleted entry has left a terminal, unless Redis lost it."""
    return state.redis.entry != 0 or state.redis.has_ended or state.has_lost


def the_client_is_told_the_truth(state: State) -> bool:
    """The client has seen what the log holds, or was told of a conflict, which happens only if Redis lost data."""
    client = state.client
    if client.status == "conflict":
        return state.has_lost
    if client.status == "finished":
        return len(client.delivered) == LENGTH
    return state.has_lost or fold(state.redis.log)[0].startswith(client.delivered)


INVARIANTS: tuple[Callable[[State], bool], ...] = (
    published_is_final,
    nothing_beyond_the_end,
    one_terminal,
    terminal_before_ack,
    the_client_is_told_the_truth,
)


def is_done(state: State) -> bool:
    """The client knows how its request ended, and the queue holds nothing of the request."""
    return state.client.status != "reading" and state.redis.entry == 0
