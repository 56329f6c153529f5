"""The questions of the load and their undisturbed answers."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from tests.chaos import wire
from tests.chaos.folded import Folded, fold
from tests.chaos.questions import DEMO, MAX_TOKENS, Question, questions
from tests.chaos.wire import LogEntry, Queue

_SURE = 1e-3
"""Where the two likeliest tokens are as close as this, rounding may choose: the answer is compared up to there."""
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """An undisturbed answer: its tokens, of a plain question those up to the first that rounding might change, and of a
    fixed question everything.
    """

    tokens: Sequence[Sequence[int]]
    """By choice; the last one's are those of all further choices, too."""
    whole: Folded | None = None

    def of_choice(self, choice: int) -> list[int]:
        """Return the tokens of a choice."""
        return list(self.tokens[min(choice, len(self.tokens) - 1)])


@dataclass
class Catalogue:
    """Questions, the text of tokens, and, once computed, the answers."""

    tokenizer: Tokenizer
    questions: list[Question]
    answers: list[Answer] = field(default_factory=list)

    @classmethod
    def load(cls) -> "Catalogue":
        """Load the catalogue from the demo model's files."""
        tokenizer = Tokenizer.from_file(str(DEMO / "model" / "tokenizer.json"))
        return cls(tokenizer, questions(tokenizer))

    def text(self, tokens: list[int]) -> str:
        """Return the text that a client should read."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    async def ask(self, client: Any, queue: Queue) -> None:
        """Have any worker compute the answers through Redis. Raises TimeoutError if no worker does, RuntimeError if it
        cannot.
        """
        deadline_ms = int((time.time() + _PATIENCE_S) * 1000)
        ids = [f"reference-{number}" for number in range(len(self.questions))]
        greedy = {"max_tokens": MAX_TOKENS, "temperature": 0.0, "ignore_eos": True, "logprobs": 2}
        for request_id, question in zip(ids, self.questions, strict=True):
            payload = question.payload if question.fixed else question.payload | greedy
            await client.xadd(queue.requests("normal", request_id), wire.entry(request_id, payload, deadline_ms))
        async with asyncio.timeout(_PATIENCE_S):
            for request_id, question in zip(ids, self.questions, strict=True):
                entries: list[LogEntry] = []
                while not any(one.is_terminal for one in entries):
                    await asyncio.sleep(0.2)
                    raw = await client.xrange(wire.reply_key(request_id))
                    entries = [LogEntry.read(entry_id, fields) for entry_id, fields in raw]
                folded = fold(entries)
                if folded.outcome != "finished":
                    raise RuntimeError(f"{question.payload}: {folded.outcome}: {folded.message}")
                self.answers.append(Answer(folded.tokens, folded) if question.fixed else Answer([_sure_part(folded)]))
        await client.flushall()


def _sure_part(folded: Folded) -> list[int]:
    """Return the tokens of a greedy answer up to the first that rounding might change."""
    likeliest = [best for _, best in folded.logprobs[0]]
    close = (at for at, (first, second) in enumerate(likeliest) if first[1] - second[1] < _SURE)
    return folded.tokens[0][: next(close, None)]
