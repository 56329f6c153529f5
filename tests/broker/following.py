"""What a client saw of a reply."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from orcastream.broker.resume import ResumePoint, Resumption
from orcastream.broker.subscription import Update
from orcastream.schemas.events import Run, Terminal


@dataclass
class Seen:
    """The tokens per choice, in order of arrival and each at its position; epochs by worker; terminals; the last id."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    workers: list[str] = field(default_factory=list)
    terminals: list[Terminal] = field(default_factory=list)
    resume_id: str = ""

    def take(self, update: Update) -> None:
        """Record one update. Raises AssertionError if a token is repeated or skipped."""
        self.resume_id = update.resume_id
        if update.started is not None:
            self.workers.append(update.started.worker)
        for run in update.runs:
            self._append(run)
        if update.terminal is not None:
            self.terminals.append(update.terminal)

    def _append(self, run: Run) -> None:
        known = self.tokens.setdefault(run.choice, [])
        assert run.position == len(known), f"choice {run.choice}: run at {run.position} after {len(known)} tokens"
        known.extend(run.tokens)


async def follow_until(subscription: AsyncIterator[Update], seen: Seen, condition: Callable[[Seen], bool]) -> Seen:
    """Follow a reply until the tokens seen satisfy `condition`, or to its end."""
    while not condition(seen):
        try:
            seen.take(await anext(subscription))
        except StopAsyncIteration:
            break
    return seen


async def follow(subscription: AsyncIterator[Update]) -> Seen:
    """Follow a reply to its end."""
    return await follow_until(subscription, Seen(), lambda seen: False)


async def resume(subscription: AsyncIterator[Update], resume_id: str) -> AsyncIterator[Update]:
    """Return the updates after `resume_id`, as a gateway that resumes there gets them."""
    resumption: Resumption | None = Resumption(ResumePoint.parse(resume_id))
    async for update in subscription:
        if resumption is None:
            yield update
            continue
        has_finished = update.terminal is not None and update.terminal.error is None
        caught_up = resumption.take(update.runs, has_finished=has_finished)
        if caught_up is not None:
            resumption = None
        runs = () if caught_up is None else tuple(caught_up.beyond)
        if runs or update.started or update.terminal:
            yield update._replace(runs=runs)


def expected(count: int, *, salt: int = 0, start: int = 0) -> list[int]:
    """Return the output of a scripted worker's model at positions `start` to `count`."""
    return [position * 10 + salt for position in range(start, count)]


def tokens_seen(count: int) -> Callable[[Seen], bool]:
    """Return a condition: choice 0 has `count` tokens."""
    return lambda seen: len(seen.tokens.get(0, ())) >= count


def flat(runs: Sequence[Run]) -> list[int]:
    """Return the tokens of `runs`."""
    return [token for run in runs for token in run.tokens]
