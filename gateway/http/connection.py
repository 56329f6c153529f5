"""One client's connection: uvicorn's protocol, with timeouts for headers, bodies and answers, and bounds."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from orcastream.gateway.errors import ApiError, gateway_stopping, unavailable
from orcastream.gateway.http.arrival import Arrival
from orcastream.gateway.http.backlog import Backlog, HeldFlow
from orcastream.gateway.http.connections import LAST_EVENTS_S, Connections
from orcastream.gateway.http.last_answer import not_in_time, too_much_behind, whole_answer
from orcastream.gateway.http.request_parser import RequestParser
from orcastream.gateway.http.sending import DROP_BYTES, adapt
from orcastream.gateway.http.time_limit import TimeLimit
from orcastream.gateway.http.unread import Unread

CUT: Final = "orcastream.cut"
"""Key in the scope of a request: the function that closes its connection before its answer is complete."""


class BoundedConnection(HttpToolsProtocol):
    """A connection with timeouts for whatever the client owes; a stream of events is never idle, however silent."""

    parser: RequestParser  # type: ignore[assignment]  # has all that uvicorn calls

    def __init__(self, shared: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arrival = Arrival()
        self.parser = RequestParser(self, self._arrival)
        self._shared = shared
        self._limits = shared.limits
        self.timeout_keep_alive = shared.limits.idle_timeout_s  # type: ignore[assignment]  # handed to call_later
        self._time_limit = TimeLimit()
        """For the headers or the body being received."""
        self._backlog = Backlog()
        self._hold_limit = TimeLimit()
        """For the requests that nothing is read behind."""
        self._dropped_bytes = 0
        """What has arrived since the connection ended."""
        self._stops_at: float | None = None
        """When bodies must have arrived, by the loop's clock, since the server is stopping."""
        self._last: ApiError | None = None
        """The error that follows the answers to earlier requests; nothing is read any more."""
        self._served: RequestResponseCycle | None = None
        """The request that is being answered; `cycle` is the last one received, which may wait behind it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of streams alone
        """Accept the connection, closing an idle one if necessary; 503 if all are busy."""
        super().connection_made(transport)
        self._unread = Unread(transport, self._limits.write_timeout_s)
        self.flow = HeldFlow(transport, self._backlog)
        self._time_limit.set(self._limits.header_timeout_s, self._headers_late)
        if len(self.connections) > self._limits.max_connections and not self._shared.close_longest_waiting():
            self._end(unavailable("The gateway has reached its maximum number of connections.", "too_many_connections"))
            return
        self._shared.waiting[transport] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left, or the server has closed the connection."""
        self._shared.lost(self.transport)
        self._time_limit.lift()
        self._hold_limit.lift()
        self._unread.end()
        self._tell_left()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes of requests have arrived."""
        if self._has_ended:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > DROP_BYTES:
                self.transport.close()
            return
        self._backlog.add(data)
        self._parse()

    def _parse(self) -> None:
        """Parse what has arrived until a request waits behind another."""
        while self._backlog and not self.pipeline and not self._has_ended:
            self._parse_piece(self._backlog.take())
        if self._backlog.is_much and not self._has_ended:
            self.flow.pause_reading()
            self._hold_limit.set(self._limits.header_timeout_s, self._held_long)
        elif self.pipeline:  # uvicorn pauses
            self.flow.resume_reading()

    def _parse_piece(self, data: bytes) -> None:
        super().data_received(data)
        if self.parser is None or self._has_ended:
            return
        # line ends end uvicorn's idle state
        if not self._time_limit.is_set and (self._arrival.in_body or not self._answering):
            self._wait_for_more()

    def on_message_begin(self) -> None:
        """The first byte of a request has arrived."""
        super().on_message_begin()
        if not self._time_limit.is_set:
            self._time_limit.set(self._limits.header_timeout_s, self._headers_late)

    def on_headers_complete(self) -> None:
        """The headers are complete, so the request can be served."""
        self._time_limit.lift()
        self._shared.waiting.pop(self.transport, None)
        super().on_headers_complete()
        adapt(self.cycle)

    def on_message_complete(self) -> None:
        """The whole request has arrived."""
        self._time_limit.lift()
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        cycle.scope[CUT] = self._cut  # type: ignore[typeddict-unknown-key]  # of this server alone
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """The whole answer is written."""
        super().on_response_complete()
        if self._last is not None and not self._answering:
            error, self._last = self._last, None
            self._end(error)
            return
        self._hold_limit.lift()
        self._parse()
        if self._has_ended:
            return
        if self._time_limit.is_set or self._arrival.in_body:  # what waited behind this answer has its time from here on
            self._wait_for_more()
        self.flow.resume_reading()
        if not self._answering:
            self._shared.waiting[self.transport] = None

    def shutdown(self) -> None:
        """Close once what is being served has been answered; a body has as long to arrive as streams have to end.

        A client that does not read its answer is disconnected.
        """
        super().shutdown()
        self._stops_at = self.loop.time() + self._limits.shutdown_grace_s
        self.loop.call_at(self._stops_at + LAST_EVENTS_S, self.transport.abort)
        if self._arrival.in_body:
            self._wait_for_more()

    def pause_writing(self) -> None:
        """The client reads more slowly than data is sent."""
        super().pause_writing()
        self._unread.begin()

    def resume_writing(self) -> None:
        """The client has read what was sent."""
        super().resume_writing()
        self._unread.end()

    def send_400_response(self, msg: str) -> None:
        """The client sent something other than HTTP, or a request that the parser refuses."""
        self._end(self.parser.refusal or ApiError(400, msg, code="invalid_http"))

    @property
    def _has_ended(self) -> bool:
        """Whether nothing more is read, or only to be dropped."""
        return self.transport.is_closing() or self.transport in self._shared.lingering or self._last is not None

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_more(self) -> None:
        """Wait for the rest of a body or of headers, or for headers to begin."""
        if self._arrival.in_body and self._stops_at is not None:
            self._time_limit.set(max(0.0, self._stops_at - self.loop.time()), self._body_cut_short)
        elif self._arrival.in_body:
            self._time_limit.set(self._limits.body_timeout_s, self._body_late)
        else:
            self._time_limit.set(self._limits.header_timeout_s, self._headers_late)

    def _headers_late(self) -> None:
        if self._answering:  # the next request began early; its time starts once this answer is written
            self._wait_for_more()
        elif self._arrival.in_headers:
            self._end(not_in_time("headers", self._limits.header_timeout_s))
        else:
            self.transport.close()

    def _body_late(self) -> None:
        if self._served is not self.cycle:  # nothing is read for a request that waits behind another
            self._wait_for_more()
            return
        self._end(not_in_time("body", self._limits.body_timeout_s))

    def _held_long(self) -> None:
        """Read on, so that a client that has left is noticed. One whose answer has begun is noticed by sending that."""
        if self._served is not None and self._served.response_started:
            self._hold_limit.set(self._limits.header_timeout_s, self._held_long)
        else:
            self._end(too_much_behind(self._limits.header_timeout_s))

    def _body_cut_short(self) -> None:
        if self._served is self.cycle:
            self._end(gateway_stopping())

    def _end(self, error: ApiError) -> None:
        """Send the error, unless an answer has begun, and close; the request's handler learns that the client left.

        An error of a request that came behind another is sent after that one's answer.
        """
        self._time_limit.lift()
        self._hold_limit.lift()
        served = self._served
        if served is not None and served.response_complete:
            served = None
        if self._has_ended or (served is not None and served.more_body and served.response_started):
            self._cut()
            return
        if served is not None and not served.more_body:
            self._end_behind(served, error)
            return
        self._tell_left()
        self.transport.write(whole_answer(error, self.headers or (), self._shared.cors_origins))
        if self._shared.linger(self.transport):
            self.connections.discard(self)
            self._drop_backlog()

    def _end_behind(self, served: RequestResponseCycle, error: ApiError) -> None:
        """Send the error once all requests before the faulty one are answered, and drop what arrives meanwhile."""
        if self.cycle.more_body:  # it waits behind the others
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else served
        self._last = error
        self._arrival.end()
        self._drop_backlog()

    def _drop_backlog(self) -> None:
        self._backlog.drop()
        self.flow.resume_reading()

    def _cut(self) -> None:
        """Close the connection, as if the client had left."""
        self._tell_left()
        self.transport.close()

    def _tell_left(self) -> None:
        """Tell the handler of the request that is being answered that the client has left."""
        if self._served is not None:
            self._served.disconnected = True
            self._served.message_event.set()
