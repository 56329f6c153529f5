"""Replies as one HTTP answer: gathered whole, or streamed as server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from orcastream.broker.errors import BrokerError, IdInUse, ReplyConflict, UnknownRequest, WrongTenant
from orcastream.gateway.errors import ApiError, crashed, id_in_use, not_found, reply_conflict, unavailable
from orcastream.gateway.openai.answer_shape import AnswerShape, WrittenChoice
from orcastream.gateway.openai.answer_usage import AnswerUsage
from orcastream.gateway.replies.answer_room import AnswerRoom
from orcastream.gateway.replies.event_writer import check
from orcastream.gateway.replies.merged import merged
from orcastream.gateway.replies.reply_session import Updates
from orcastream.gateway.replies.reply_text import ReplyText
from orcastream.gateway.replies.reply_writer import ReplyWriter
from orcastream.gateway.replies.sse import KEEP_ALIVE
from orcastream.gateway.replies.turns import Turns

_TURN_TOKENS: Final = 16
"""Tokens with log probabilities gathered in one turn of the event loop."""
_TURN_BYTES: Final = 32 * 1024
"""Bytes streamed in one turn of the event loop, and at once: about 16 tokens with the most log probabilities."""


class ReadReply(NamedTuple):
    """One prompt's reply as it arrives, and how it is written."""

    updates: Updates
    text: ReplyText
    shape: AnswerShape


async def gather(replies: Sequence[ReadReply], room: AnswerRoom) -> tuple[list[WrittenChoice], AnswerUsage]:
    """Return the choices of all prompts, and their token counts.

    Raises ApiError if one of them ended with an error, AnswerTooLarge as soon as the answer exceeds its room.
    """
    tasks = [asyncio.ensure_future(_gather_one(reply, room)) for reply in replies]
    try:
        gathered = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    choices = [choice for written, _ in gathered for choice in written]
    return choices, AnswerUsage.total([usage for _, usage in gathered])


async def _gather_one(reply: ReadReply, room: AnswerRoom) -> tuple[list[WrittenChoice], AnswerUsage]:
    text, choices, turns, told_bytes = reply.text, dict[int, WrittenChoice](), Turns(_TURN_TOKENS), 0

    def choice_of(number: int) -> WrittenChoice:
        if number not in choices:
            choices[number] = reply.shape.begun(text.prompt.echo, text.prompt.told)
        return choices[number]

    async with aclosing(reply.updates) as updates:
        async for ready in updates:
            for update in ready:
                for piece in text.take(update):
                    room.take(choice_of(piece.choice).add(piece.parts, piece.logprobs))
                    if turns.is_over(len(piece.logprobs)):
                        await asyncio.sleep(0)
                if update.terminal is not None:
                    check(update.terminal)
                    for last in text.end(update.terminal):
                        choice = choice_of(last.choice)
                        choice.add(last.parts)
                        choice.finish_reason = last.finish_reason
                    return [choices[number] for number in sorted(choices)], text.usage(update.terminal)
                if update.prompt is not None:
                    before, told_bytes = told_bytes, text.prompt.told.size_bytes
                    room.take(told_bytes - before)
                    await asyncio.sleep(0)  # each of them takes long, and a ready batch may have many
    raise unavailable("The reply was interrupted.")


async def stream(
    replies: Sequence[tuple[Updates, ReplyWriter]], request_id: str, failed: Callable[[ApiError], None]
) -> AsyncGenerator[bytes]:
    """Yield the answer as events; events that are ready at the same time form one piece of bytes, or
    several if they are large.

    An error after the stream has begun is its last event, and `failed` is called with it. `request_id` is the client's
    id of the request.
    """
    first = replies[0][1]
    written = [event for _, writer in replies for event in writer.begin()]
    usages: list[AnswerUsage] = []
    turns = Turns(_TURN_BYTES)
    try:
        if written:
            yield b"".join(written)
            written.clear()
        async with aclosing(merged([updates for updates, _ in replies])) as batches:
            async for number, ready in batches:
                writer = replies[number][1]
                if not ready:
                    yield KEEP_ALIVE
                for update in ready:
                    for part in writer.write(update):
                        written.append(part)  # one by one: what was made before an error is sent before it
                        if turns.is_over(len(part)):  # so a client that reads slowly is sent no more than this at once
                            together = b"".join(written)
                            written.clear()
                            yield together
                            await asyncio.sleep(0)
                    if update.prompt is not None:
                        await asyncio.sleep(0)  # see above
                    if update.terminal is not None:
                        usages.append(writer.text.usage(update.terminal))
                if len(usages) == len(replies):
                    written += first.end(usages)
                if written:
                    together = b"".join(written)
                    written.clear()
                    yield together
    except Exception as error:
        if written:
            yield b"".join(written)
            written.clear()
        told = as_api_error(error, request_id)
        failed(told)
        yield first.failure(told)
        if not isinstance(error, ApiError | BrokerError):
            raise


def as_api_error(error: Exception, request_id: str) -> ApiError:
    """Return the error to send to the client after a failure while its reply was read."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ReplyConflict):
        return reply_conflict()
    if isinstance(error, WrongTenant | UnknownRequest):
        return not_found(request_id)
    if isinstance(error, IdInUse):
        return id_in_use(error)
    if isinstance(error, BrokerError):
        return unavailable(f"Redis cannot be read: {error}")
    return crashed("reply")
