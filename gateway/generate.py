"""POST to an endpoint whose answers are choices: admit, enqueue, answer."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from orcastream.broker.errors import BrokerError
from orcastream.gateway.errors import ApiError
from orcastream.gateway.intake import Accepted, Received, accept, receive
from orcastream.gateway.openai.answer_shape import AnswerShape
from orcastream.gateway.openai.encoded_json import encoded
from orcastream.gateway.openai.endpoint import GenerationEndpoint
from orcastream.gateway.openai.opening import Opening
from orcastream.gateway.openai.prompt import Prompt, Text, TokenIds
from orcastream.gateway.openai.request import ApiRequest
from orcastream.gateway.replies.answer import ReadReply, as_api_error, gather, stream
from orcastream.gateway.replies.answer_room import AnswerRoom
from orcastream.gateway.replies.event_writer import EventWriter
from orcastream.gateway.replies.reply_session import ReplySession
from orcastream.gateway.replies.reply_text import ReplyText
from orcastream.gateway.replies.sse import EventStream, disconnected
from orcastream.gateway.request_telemetry import RequestTelemetry
from orcastream.gateway.served_model import ServedModel
from orcastream.gateway.service import Gateway


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to one prompt: where it is read from and how it is written."""

    session: ReplySession
    shape: AnswerShape
    opening: Opening
    """What each of its choices begins with."""
    repeated: Sequence[int] | None
    """See PromptText."""

    def text(self) -> ReplyText:
        """Return a new reader of the reply's text, from its start."""
        split = self.session.request_id if self.shape.endpoint.splits else None
        return ReplyText(self.session.model.tokenizer, split=split, opening=self.opening, repeated=self.repeated)


async def generate(gateway: Gateway, endpoint: GenerationEndpoint, request: Request) -> Response:
    """Admit, enqueue, answer. Raises ApiError, InvalidRequest, BrokerError."""
    telemetry = RequestTelemetry()
    received = await receive(gateway, endpoint, request)
    replies = await enqueue_all(received, telemetry)
    shape, sessions = replies[0].shape, [reply.session for reply in replies]
    if received.asked.options.stream:
        return _stream(replies)
    return await answer_whole(whole(replies), sessions, request, shape.id)


async def enqueue_all(received: Received, telemetry: RequestTelemetry) -> list[Reply]:
    """Enqueue one request per prompt.

    If a later prompt is refused, the earlier requests end as if their client had left; metrics do not count it as gone.
    """
    model, asked, options = received.model, received.asked, received.asked.options
    replies: list[Reply] = []
    first_choice = 0
    try:
        for number, request in enumerate(received.requests):
            told = telemetry.another() if replies else telemetry
            accepted = await accept(model, request, options, received.grant, told)
            if replies:
                shape = replies[0].shape
            else:
                name, now_ms = received.shown_model, model.redis.now_ms
                shape = AnswerShape.of(accepted.shown_id, name, accepted.entry, now_ms, options.usage)
            shape = replace(shape, first_choice=first_choice)
            first_choice += accepted.num_choices
            replies.append(Reply(accepted.session(), shape, *_beginning(accepted, asked, number)))
    except BaseException:
        await close_all([reply.session for reply in replies], left=False)  # it gets the error
        raise
    return replies


def _beginning(accepted: Accepted, asked: ApiRequest, number: int) -> tuple[Opening, Sequence[int] | None]:
    """Return `opening` and `repeated` of a reply. While the first request of an id exists, its prompt counts."""
    prompt, counting = accepted.request.payload.prompt, accepted.counting
    first = prompt if counting is None else counting.payload.prompt
    opening = asked.opening
    if asked.echo:
        said = asked.prompts[number] if first == prompt else TokenIds(list(first))
        opening = replace(opening, text=_prompt_text(accepted.model, said))
    return opening, first if accepted.is_duplicate else None


def _prompt_text(model: ServedModel, prompt: Prompt) -> str:
    """Return the text to echo."""
    if isinstance(prompt, Text):
        return prompt.text
    return model.tokenizer.decode(prompt.ids) if isinstance(prompt, TokenIds) else ""


async def close_all(sessions: Sequence[ReplySession], *, left: bool) -> None:
    """See `ReplySession.close`."""
    for session in sessions:
        await session.close(left=left)


def _stream(replies: Sequence[Reply]) -> Response:
    """Answer as a stream of events.

    With several prompts, events have no ids to resume from: each prompt has its own log.
    """
    first, is_alone = replies[0], len(replies) == 1
    written = [
        (reply.session.updates(), EventWriter(reply.shape, reply.text(), resumable=is_alone)) for reply in replies
    ]
    events = stream(written, first.shape.id, first.session.failed)
    sessions = [reply.session for reply in replies]
    return EventStream(events, closed=partial(close_all, sessions))


async def whole(replies: Sequence[Reply], most_bytes: int | None = None) -> bytes:
    """Return the whole answer as JSON. Raises ApiError, and AnswerTooLarge if it exceeds `most_bytes`."""
    read = [ReadReply(reply.session.updates(), reply.text(), reply.shape) for reply in replies]
    choices, usage = await gather(read, AnswerRoom(most_bytes))
    body = encoded(replies[0].shape.whole(choices, usage))
    AnswerRoom(most_bytes).take(len(body))
    return body


async def answer_whole(
    answer: Awaitable[bytes], sessions: Sequence[ReplySession], request: Request, request_id: str
) -> Response:
    """Return the answer as JSON, unless the client leaves before. Closes the sessions. Raises ApiError."""
    gathering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait((gathering, leaving), return_when=asyncio.FIRST_COMPLETED)
        left = not gathering.done()
    except asyncio.CancelledError:
        left = True
        raise
    finally:
        leaving.cancel()
        gathering.cancel()
        await asyncio.gather(gathering, leaving, return_exceptions=True)
        await close_all(sessions, left=left)
    if left:
        return Response(status_code=499)
    try:
        return Response(gathering.result(), media_type="application/json")
    except (ApiError, BrokerError) as error:
        told = as_api_error(error, request_id)
        told.refused = False
        sessions[0].failed(told)
        raise told from None
