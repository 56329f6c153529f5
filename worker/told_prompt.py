"""Log probabilities of a request's prompt, as the engine returns them and as the reply log holds them."""

from typing import Any

from orcastream.engine import PromptEvent
from orcastream.schemas.events import PromptRun
from orcastream.schemas.limits import MAX_PROMPT_LOGPROBS_IN_EVENT
from orcastream.schemas.request import Payload


class ToldPrompt:
    """Log probabilities of the first `num_logged` prompt tokens are in the log and final; those up to `num_known` wait
    for the next write."""

    def __init__(self, payload: Payload) -> None:
        """`payload` asks for log probabilities of its prompt."""
        self._prompt = payload.prompt
        self._most = max(1, MAX_PROMPT_LOGPROBS_IN_EVENT // (1 + (payload.prompt_logprobs or 0)))
        self._items: list[tuple[Any, int | None]] = []
        """Log probabilities and rank of each token."""
        self.num_logged = 0

    @property
    def num_known(self) -> int:
        """Number of tokens with known log probabilities, logged or not."""
        return self.num_logged + len(self._items)

    @property
    def is_known(self) -> bool:
        """Whether the engine need not return more."""
        return self.num_known >= len(self._prompt)

    @property
    def is_logged(self) -> bool:
        """Whether all are in the log."""
        return self.num_logged >= len(self._prompt)

    def adopt(self, num_logged: int) -> bool:
        """Continue after what the log holds; return whether the engine's current output still fits.

        If the log holds more than is known here, another worker wrote it.
        """
        if self.num_logged <= num_logged <= self.num_known:
            self.logged(num_logged)
            return True
        self.num_logged, self._items = num_logged, []
        return False

    def accept(self, event: PromptEvent) -> bool:
        """Take the engine's next part, skipping what is known; return whether any of it is new."""
        skip = self.num_known - event.position
        fresh = list(zip(event.logprobs, event.ranks, strict=True))[skip:] if skip >= 0 else []
        self._items += fresh
        return bool(fresh)

    def next_run(self) -> PromptRun | None:
        """Return what to write next, as much as one event holds; None: nothing."""
        items = self._items[: self._most]
        if not items:
            return None
        begin = self.num_logged
        logprobs, ranks = zip(*items, strict=True)
        return PromptRun(begin, self._prompt[begin : begin + len(items)], logprobs, ranks)

    def logged(self, num_logged: int) -> None:
        """Record how many tokens are now covered in the log."""
        del self._items[: num_logged - self.num_logged]
        self.num_logged = num_logged
