"""A reply as an HTTP answer: gathered whole, or streamed as server-sent events."""

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing
from typing import Any

from broker.errors import BrokerError, ReplyConflict, UnknownRequest, WrongTenant
from broker.subscription import Update
from gateway.chunks import Chunks
from gateway.errors import ApiError, ended, not_found, reply_conflict, unavailable
from gateway.openai_shape import Shape
from gateway.reply_text import ReplyText
from gateway.sse import DONE, KEEP_ALIVE, comment, event
from schemas.events import Started, Terminal


async def gather(updates: AsyncGenerator[Sequence[Update]], shape: Shape, text: ReplyText) -> dict[str, Any]:
    """The whole answer. Raises ApiError where the request ended with an error."""
    texts: dict[int, str] = {}
    async with aclosing(updates):
        async for ready in updates:
            for update in ready:
                for piece in text.take(update):
                    texts[piece.choice] = texts.get(piece.choice, "") + piece.text
                if update.terminal is not None:
                    check(update.terminal)
                    lasts = text.end(update.terminal)
                    choices = [(texts.get(last.choice, "") + last.text, last.finish_reason) for last in lasts]
                    return shape.whole(choices, update.terminal.usage)
    raise unavailable("The reply broke off.")


async def stream(
    updates: AsyncGenerator[Sequence[Update]],
    shape: Shape,
    text: ReplyText,
    *,
    resumed: bool,
    failed: Callable[[ApiError], None],
) -> AsyncGenerator[bytes]:
    """The answer as events, those that are there at the same time in one piece of bytes.

    An error that comes once the stream has begun is its last event, and `failed` is told.
    """
    opened: set[int] = set()
    chunks = Chunks(shape)
    written: list[bytes] = []
    try:
        async with aclosing(updates):
            async for ready in updates:
                if not ready:
                    written.append(KEEP_ALIVE)
                for update in ready:
                    for part in parts(update, shape, chunks, text, opened, resumed=resumed):
                        written.append(part)  # one by one: what was made before an error is sent before it
                if written:
                    together = b"".join(written)
                    written.clear()
                    yield together
    except Exception as error:
        if written:
            yield b"".join(written)
        told = as_api_error(error, shape.id)
        failed(told)
        yield event(told.body())
        if not isinstance(error, ApiError | BrokerError):
            raise


def parts(
    update: Update, shape: Shape, chunks: Chunks, text: ReplyText, opened: set[int], *, resumed: bool
) -> Generator[bytes]:
    """What one update adds to a stream. ApiError behind the text of a request that failed."""
    if update.started is not None:
        yield comment(worker_comment(update))
        if not resumed:
            yield from openings(update.started, shape, opened)
    for piece in text.take(update):
        yield chunks.delta(piece.choice, piece.text, piece.event_id)
    if update.terminal is not None:
        check(update.terminal)
        for last in text.end(update.terminal):
            yield event(shape.delta(last.choice, last.text, last.finish_reason), last.event_id)
        if shape.include_usage:
            yield event(shape.usage_chunk(update.terminal.usage))
        yield DONE


def openings(started: Started, shape: Shape, opened: set[int]) -> list[bytes]:
    """The chunks before the first text of each choice, once."""
    parts = []
    for choice in range(started.n):
        chunk = None if choice in opened else shape.opening(choice)
        opened.add(choice)
        if chunk is not None:
            parts.append(event(chunk))
    return parts


def worker_comment(update: Update) -> str:
    """Who answers from here on."""
    started = update.started
    return "" if started is None else f"worker {started.worker} epoch {update.epoch}"


def check(terminal: Terminal) -> None:
    """ApiError where the request ended with one."""
    if terminal.error is not None:
        raise ended(terminal.error, terminal.message, terminal.field_name)


def as_api_error(error: Exception, request_id: str) -> ApiError:
    """What a client is told about an error while its reply was read."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ReplyConflict):
        return reply_conflict()
    if isinstance(error, WrongTenant | UnknownRequest):
        return not_found(request_id)
    if isinstance(error, BrokerError):
        return unavailable(f"Redis cannot be read: {error}")
    return ApiError(500, "The gateway failed on this reply.", kind="server_error", code="internal_error")
