"""The prompts of the load and their undisturbed greedy answers."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.chaos import wire
from tests.chaos.wire import LogEntry, Queue

MAX_TOKENS = 480
_NUM_PROMPTS = 12
_DEMO = Path(__file__).parents[2] / "demo"
_SURE = 1e-3
"""Where the two likeliest tokens are as close as this, rounding may choose: the answer is compared up to there."""
_PATIENCE_S = 120.0


@dataclass
class Catalogue:
    """Prompts as token ids, the text of tokens, and, once computed, each prompt's greedy answer."""

    tokenizer: Tokenizer
    prompts: list[list[int]]
    answers: list[list[int]] = field(default_factory=list)

    @classmethod
    def load(cls) -> "Catalogue":
        """Load the catalogue from the demo model's files."""
        tokenizer = Tokenizer.from_file(str(_DEMO / "model" / "tokenizer.json"))
        questions = [item["question"] for item in json.loads((_DEMO / "questions.json").read_text())]
        chosen = questions[:: len(questions) // _NUM_PROMPTS][:_NUM_PROMPTS]
        return cls(tokenizer, [tokenizer.encode(question).ids for question in chosen])

    def text(self, tokens: list[int]) -> str:
        """Return the text that a client should read."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    async def ask(self, client: Any, queue: Queue) -> None:
        """Have any worker compute the answers through Redis. Raises TimeoutError if no worker does."""
        deadline_ms = int((time.time() + _PATIENCE_S) * 1000)
        ids = [f"reference-{number}" for number in range(len(self.prompts))]
        how = {"max_tokens": MAX_TOKENS, "temperature": 0.0, "ignore_eos": True, "logprobs": 2}
        for request_id, prompt in zip(ids, self.prompts, strict=True):
            fields = wire.entry(request_id, {"prompt": prompt, **how}, deadline_ms)
            await client.xadd(queue.requests("normal", request_id), fields)
        async with asyncio.timeout(_PATIENCE_S):
            for request_id in ids:
                entries: list[LogEntry] = []
                while not any(one.is_terminal for one in entries):
                    await asyncio.sleep(0.2)
                    raw = await client.xrange(wire.reply_key(request_id))
                    entries = [LogEntry.read(entry_id, fields) for entry_id, fields in raw]
                self.answers.append(_sure_part(entries))
        await client.flushall()


def _sure_part(entries: list[LogEntry]) -> list[int]:
    """Return the tokens of an answer up to the first that rounding might change."""
    tokens: list[int] = []
    for one in entries:
        for run in one.event.get("output", ()):
            for token, (_, likeliest) in zip(run["tokens"], run["logprobs"], strict=True):
                if likeliest[0][1] - likeliest[1][1] < _SURE:
                    return tokens
                tokens.append(token)
    return tokens
