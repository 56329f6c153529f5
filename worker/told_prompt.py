"""What a request tells of its prompt: log probabilities, as the engine brings them and as the reply log holds them."""

from typing import Any

from orcastream.engine import PromptEvent
from orcastream.schemas.events import PromptRun
from orcastream.schemas.limits import MAX_PROMPT_LOGPROBS_IN_EVENT
from orcastream.schemas.request import Payload


class ToldPrompt:
    """The first `num_logged` tokens of the prompt are told in the log, which is final; those up to `num_known` wait for
    the next write."""

    def __init__(self, payload: Payload) -> None:
        """`payload` asks for log probabilities of its prompt."""
        self._prompt = payload.prompt
        self._most = max(1, MAX_PROMPT_LOGPROBS_IN_EVENT // (1 + (payload.prompt_logprobs or 0)))
        self._items: list[tuple[Any, int | None]] = []
        """Log probabilities and rank of each."""
        self.num_logged = 0

    @property
    def num_known(self) -> int:
        """Tokens that are told in the log, or can be."""
        return self.num_logged + len(self._items)

    @property
    def is_known(self) -> bool:
        """Whether the engine need not bring more."""
        return self.num_known >= len(self._prompt)

    @property
    def is_logged(self) -> bool:
        """Whether all is told in the log."""
        return self.num_logged >= len(self._prompt)

    def adopt(self, num_logged: int) -> bool:
        """Go on behind what the log holds; whether nothing is lost by that of what the engine brings now.

        Where the log holds more than is known here, another worker has told it.
        """
        if self.num_logged <= num_logged <= self.num_known:
            self.logged(num_logged)
            return True
        self.num_logged, self._items = num_logged, []
        return False

    def accept(self, event: PromptEvent) -> bool:
        """Take what the engine tells next; what is known is left out. Whether something of it is new."""
        skip = self.num_known - event.position
        fresh = list(zip(event.logprobs, event.ranks, strict=True))[skip:] if skip >= 0 else []
        self._items += fresh
        return bool(fresh)

    def next_run(self) -> PromptRun | None:
        """What to write next, as much as one event holds; None: nothing."""
        items = self._items[: self._most]
        if not items:
            return None
        begin = self.num_logged
        logprobs, ranks = zip(*items, strict=True)
        return PromptRun(begin, self._prompt[begin : begin + len(items)], logprobs, ranks)

    def logged(self, num_logged: int) -> None:
        """So many tokens are told in the log now."""
        del self._items[: num_logged - self.num_logged]
        self.num_logged = num_logged
