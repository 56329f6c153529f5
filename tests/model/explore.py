"""Visits every state that the rules allow, and reports the path to the first wrong one."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.model.state import State

Steps = Callable[[State], Iterable[tuple[str, State]]]
Invariant = Callable[[State], bool]


@dataclass(frozen=True)
class Wrong:
    """A violated invariant, and the shortest path to it, in words."""

    what: str
    way: tuple[str, ...]

    def __str__(self) -> str:
        return "\n  ".join((f"{self.what} does not hold after:", *self.way))


@dataclass(frozen=True)
class Explored:
    """The number of states, and the first violation."""

    num_states: int
    wrong: Wrong | None


def explore(
    begin: State, steps: Steps, invariants: Sequence[Invariant], is_done: Invariant, *, most: int = 5_000_000
) -> Explored:
    """Explore breadth first. Every state must satisfy the invariants, and from each some path must lead to one that
    `is_done`.

    Raises OverflowError if there are more than `most` states.
    """
    came_from: dict[State, tuple[State, str] | None] = {begin: None}
    before: dict[State, list[State]] = {begin: []}
    todo = deque([begin])
    while todo:
        state = todo.popleft()
        for invariant in invariants:
            if not invariant(state):
                return Explored(len(came_from), Wrong(invariant.__name__, _way(came_from, state)))
        for words, after in steps(state):
            if after not in came_from:
                if len(came_from) == most:
                    raise OverflowError(f"more than {most} states")
                came_from[after] = state, words
                before[after] = []
                todo.append(after)
            before[after].append(state)
    stuck = _first_stuck(before, is_done)
    return Explored(len(came_from), None if stuck is None else Wrong("an end in reach", _way(came_from, stuck)))


def _way(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    words: list[str] = []
    while (step := came_from[state]) is not None:
        state, word = step
        words.append(word)
    return tuple(reversed(words))


def _first_stuck(before: dict[State, list[State]], is_done: Invariant) -> State | None:
    """Return the first state, in order of discovery, from which no path leads to a good end."""
    todo = [state for state in before if is_done(state)]
    reached = set(todo)
    while todo:
        for state in before[todo.pop()]:
            if state not in reached:
                reached.add(state)
                todo.append(state)
    return next((state for state in before if state not in reached), None)
