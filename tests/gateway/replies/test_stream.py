"""A stream's bytes: simultaneous events go out in one piece, and nothing is lost before an error."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from orcastream.broker.errors import ReplyConflict
from orcastream.broker.subscription import Update
from orcastream.gateway.errors import ApiError
from orcastream.gateway.openai.answer_shape import AnswerShape
from orcastream.gateway.replies.answer import stream
from orcastream.gateway.replies.event_writer import EventWriter
from orcastream.gateway.replies.reply_text import ReplyText
from orcastream.gateway.replies.sse import KEEP_ALIVE
from orcastream.schemas.events import PromptRun, Run, Started
from orcastream.text.tokenizer import Tokenizer

SHAPE = AnswerShape("cmpl-1", "tiny", 1_795_270_285)
STARTED = Started("w1", "tiny", "default", "normal", "normal 1-0", 0, 1)


def updates(tokenizer: Tokenizer, text: str) -> list[Update]:
    """One update per character, each its own token."""
    ids = [tokenizer.encode(character)[0] for character in text]
    return [Update((n,), (n,), 1, (Run(0, n - 1, (token,)),)) for n, token in enumerate(ids, start=1)]


async def bytes_of(
    batches: Sequence[list[Update]], tokenizer: Tokenizer, failure: Exception | None = None
) -> tuple[list[bytes], list[ApiError]]:
    async def come() -> AsyncGenerator[list[Update]]:
        for batch in batches:
            yield batch
        if failure is not None:
            raise failure

    told: list[ApiError] = []
    writer = EventWriter(SHAPE, ReplyText(tokenizer))
    events = stream([(come(), writer)], SHAPE.id, told.append)
    return [part async for part in events], told


def texts(part: bytes) -> list[str]:
    """Return the text of each event."""
    lines = [line[6:] for line in part.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line)["choices"][0]["text"] for line in lines]


def served_by(part: bytes) -> list[Any]:
    """Return what each event says of its worker."""
    lines = [line[6:] for line in part.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line).get("served_by") for line in lines]


async def test_simultaneous_events_are_sent_in_one_piece(tokenizer: Tokenizer) -> None:
    begun = Update((0,), (0,), 1, started=STARTED)
    one_by_one = updates(tokenizer, "abc")
    parts, _ = await bytes_of([[begun, *one_by_one[:2]], [], one_by_one[2:]], tokenizer)
    assert served_by(parts[0]) == [{"worker": "w1", "epoch": 1}, None]
    assert parts[1] == KEEP_ALIVE
    assert len(texts(parts[0])) == 2
    assert len(texts(parts[2])) == 1
    assert "".join(texts(parts[0]) + texts(parts[2])) == "abc"
    assert parts[0].count(b'"event_id":') == 2
    assert b"\nid:" not in parts[0]


async def test_the_next_chunk_names_a_worker_that_begins(tokenizer: Tokenizer) -> None:
    """It is a field: many clients parse every line that is not empty as JSON."""
    begun = Update((0,), (0,), 1, started=STARTED)
    again = Update((1,), (1,), 2, started=replace(STARTED, worker="w2"))
    first, second = updates(tokenizer, "ab")
    parts, _ = await bytes_of([[begun], [], [first, again], [second]], tokenizer)
    assert parts[0] == KEEP_ALIVE
    assert [served_by(part) for part in parts[1:]] == [[{"worker": "w1", "epoch": 1}], [{"worker": "w2", "epoch": 2}]]
    assert texts(b"".join(parts)) == ["a", "b"]
    assert all(line.startswith(b"data: ") for line in b"".join(parts).split(b"\n") if line)


async def test_events_before_an_error_are_sent_before_it(tokenizer: Tokenizer) -> None:
    begun = Update((0,), (0,), 1, started=STARTED)
    parts, told = await bytes_of([[begun, *updates(tokenizer, "ab")]], tokenizer, ReplyConflict("another"))
    assert "".join(texts(parts[0])) == "ab"
    assert json.loads(parts[1].split(b"data: ")[1])["error"]["code"] == "reply_conflict"
    assert [error.code for error in told] == ["reply_conflict"]


async def test_other_tasks_run_between_the_parts_of_a_long_prompt(tokenizer: Tokenizer) -> None:
    """All parts are available at once, as in a reread reply, and each choice is sent separately."""
    length, runs = 24, 512
    items = [[-1.5, [[token, -1.5] for token in range(20)]]] * length
    begun = Update((0, 0), (0, 0), 1, started=replace(STARTED, n=2, prompt_tokens=runs * length, prompt_logprobs=20))
    prompt = [
        Update((0, 0), (0, 0), 1, prompt=PromptRun(at * length, (5,) * length, tuple(items))) for at in range(runs)
    ]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    parts, _ = await bytes_of([[begun, *prompt]], tokenizer)
    counting.cancel()
    assert turns >= runs
    told = [json.loads(part.rpartition(b"data: ")[2])["choices"][0] for part in parts[:2]]
    assert [choice["index"] for choice in told] == [0, 1]
    assert told[0]["prompt_logprobs"] == told[1]["prompt_logprobs"]
    assert len(told[0]["prompt_logprobs"]) == runs * length
