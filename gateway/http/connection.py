"""One client's connection: uvicorn's protocol, with timeouts for headers, bodies and answers, and bounds."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from orcastream.gateway.errors import ApiError, gateway_stopping, unavailable
from orcastream.gateway.http.held_flow import HeldFlow
from orcastream.gateway.http.last_answer import MAX_HEADER_BYTES, headers_too_large, not_in_time, whole_answer
from orcastream.gateway.http.request_parser import RequestParser
from orcastream.gateway.http.sending import DROP_BYTES, send_after_body, send_without_chunks
from orcastream.gateway.http.unread import Unread

_PIECE_BYTES: Final = 4096
"""What is parsed at once: the requests of so many bytes may wait behind another."""
_HELD_BYTES: Final = 64 * 1024
"""How much may arrive behind them before reading pauses: only a connection that is read tells that its client left."""
_LOOK_S: Final = 0.001
_LINGER_S: Final = 1.0
_MOST_LINGERING: Final = 32
"""How long a connection waits for its client to close, and how many do, beside `max_connections`."""
CUT: Final = "orcastream.cut"
"""Key in the scope of a request: the function that closes its connection before its answer is complete."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many clients a server accepts, and how long it waits for each of them. [connections, s]"""

    max_connections: int
    header_timeout_s: float
    body_timeout_s: float
    idle_timeout_s: float
    write_timeout_s: float
    shutdown_grace_s: float


class Connections:
    """State shared by the connections of one server."""

    def __init__(self, limits: ConnectionLimits, cors_origins: Collection[str] = ()) -> None:
        """`cors_origins`: see the setting."""
        self.limits = limits
        self.cors_origins = cors_origins
        self.waiting: dict[BoundedConnection, None] = {}
        """Connections on which no request is being served, longest idle first."""
        self.lingering: set[BoundedConnection] = set()
        """Connections that have ended, and wait for their clients to close."""

    def protocol(self, *args: Any, **kwargs: Any) -> "BoundedConnection":
        """Make a connection, as uvicorn makes its own."""
        return BoundedConnection(self, *args, **kwargs)


class BoundedConnection(HttpToolsProtocol):
    """A connection with timeouts for whatever the client owes.

    A stream of events never counts as idle, however silent.
    """

    parser: RequestParser  # type: ignore[assignment]  # has all that uvicorn calls

    def __init__(self, shared: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = RequestParser(self, self._head_without_upgrade)
        self._shared = shared
        self._limits = shared.limits
        self.timeout_keep_alive = shared.limits.idle_timeout_s  # type: ignore[assignment]  # handed to call_later
        self._timer: asyncio.TimerHandle | None = None
        """For the headers or the body being received."""
        self._in_headers = self._in_body = False
        self._began = False
        """Whether a request began in the bytes that arrived last."""
        self._header_bytes = 0
        """What has arrived of incomplete headers, or since the last bytes of a body: its trailers may have no end."""
        self._is_body = False
        """Whether the bytes that arrived last had some of a body."""
        self._unparsed = memoryview(b"")
        """What has arrived behind a request that waits for the one before it."""
        self._dropped_bytes = 0
        """What has arrived since the connection ended."""
        self._refusal: ApiError | None = None
        """Why a request is refused whose headers are valid HTTP."""
        self._last: ApiError | None = None
        """The error that follows the answers to earlier requests; nothing is read any more."""
        self._served: RequestResponseCycle | None = None
        """The request that is being answered; `cycle` is the last one received, which may wait behind it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of streams alone
        """Accept the connection, closing an idle one if necessary; 503 if all are busy."""
        super().connection_made(transport)
        self._unread = Unread(transport, self._limits.write_timeout_s)
        self.flow = HeldFlow(transport, lambda: len(self._unparsed) > _HELD_BYTES)
        self._wait(self._limits.header_timeout_s, self._headers_late)
        if len(self.connections) > self._limits.max_connections:
            longest_waiting = next(iter(self._shared.waiting), None)
            if longest_waiting is None:
                self._end(
                    unavailable("The gateway has reached its maximum number of connections.", "too_many_connections")
                )
                return
            longest_waiting.leave()
        self._shared.waiting[self] = None

    def leave(self) -> None:
        """Close a connection on which no request is being served."""
        self._shared.waiting.pop(self, None)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left, or the server has closed the connection."""
        self._shared.waiting.pop(self, None)
        self._shared.lingering.discard(self)
        self._stop_waiting()
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
        self._unparsed = memoryview(bytes(self._unparsed) + data)
        self._parse()

    def _parse(self) -> None:
        """Parse what has arrived until a request waits behind another: the requests of one read take far more memory
        than its bytes. If much is left, nothing more is read until it is parsed.
        """
        while self._unparsed and not self.pipeline and not self._has_ended:
            piece, self._unparsed = self._unparsed[:_PIECE_BYTES], self._unparsed[_PIECE_BYTES:]
            self._parse_piece(bytes(piece))
        if len(self._unparsed) > _HELD_BYTES and not self._has_ended:
            self.flow.pause_reading()
        elif self.pipeline:  # uvicorn pauses
            self.flow.resume_reading()

    def _parse_piece(self, data: bytes) -> None:
        self._began = self._is_body = False
        super().data_received(data)
        if self.parser is None or self._has_ended:
            return
        if self._in_headers or (self._in_body and not self._is_body):
            # the bytes that headers begin in may hold earlier requests, too
            self._header_bytes = self._read_header_bytes() if self._began else self._header_bytes + len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._end(headers_too_large())
                return
        if self._timer is None and (self._in_body or not self._answering):  # line ends end uvicorn's idle state
            self._wait_for_more()

    def on_message_begin(self) -> None:
        """The first byte of a request has arrived."""
        super().on_message_begin()
        self._in_headers, self._began, self._header_bytes = True, True, 0
        if self._timer is None:
            self._wait(self._limits.header_timeout_s, self._headers_late)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has arrived; the parser leaves the white space after its value, which is no part of it.

        Trailers, which follow a body in chunks, are ignored: a proxy that checks headers has not checked them.
        """
        if not self._in_body:
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """The headers are complete, so the request can be served."""
        if self.parser.offers_upgrade:  # they are parsed again without the offer
            return
        self._stop_waiting()
        if self._read_header_bytes() > MAX_HEADER_BYTES:
            self._refusal = headers_too_large()
            raise ValueError("headers too large")  # ends the parsing; send_400_response is called
        self._in_headers, self._in_body = False, True
        self._shared.waiting.pop(self, None)
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.waiting_for_100_continue = False  # HTTP/1.0 has no interim answers
            send_without_chunks(self.cycle)
        send_after_body(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Some bytes of a body have arrived."""
        self._is_body, self._header_bytes = True, 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The whole request has arrived."""
        if self.parser.offers_upgrade:
            return
        self._stop_waiting()
        self._in_body = False
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        cycle.scope[CUT] = self._cut  # type: ignore[typeddict-unknown-key]  # of this server alone
        super()._start_asgi_task(cycle, app)

    def _head_without_upgrade(self) -> bytes:
        """Return the head of the request whose headers were just read, without its offer of another protocol."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))

    def on_response_complete(self) -> None:
        """The whole answer is written."""
        super().on_response_complete()
        if self._last is not None and not self._answering:
            error, self._last = self._last, None
            self._end(error)
            return
        self._parse()
        if self._has_ended:
            return
        if self._timer is not None:  # what waited behind this answer has its time from here on
            self._stop_waiting()
            self._wait_for_more()
        self.flow.resume_reading()
        if not self._answering:
            self._shared.waiting[self] = None

    def shutdown(self) -> None:
        """Close once what is being served has been answered; a body has as long to arrive as streams have to end."""
        super().shutdown()
        if self._in_body:
            self._stop_waiting()
            self._wait(self._limits.shutdown_grace_s, self._body_cut_short)

    def pause_writing(self) -> None:
        """The client reads more slowly than data is sent."""
        super().pause_writing()
        self._unread.begin()

    def resume_writing(self) -> None:
        """The client has read what was sent."""
        super().resume_writing()
        self._unread.end()

    def send_400_response(self, msg: str) -> None:
        """The client sent something other than HTTP, or a request that is refused for its headers."""
        self._end(self._refusal or ApiError(400, msg, code="invalid_http"))

    def _read_header_bytes(self) -> int:
        """Return the bytes of the URL and of the headers that are complete, with their colons and line ends."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    @property
    def _has_ended(self) -> bool:
        """Whether nothing more is read, or only to be dropped."""
        return self.transport.is_closing() or self in self._shared.lingering or self._last is not None

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_more(self) -> None:
        """Wait for the rest of a body or of headers, or for headers to begin."""
        if self._in_body:
            self._wait(self._limits.body_timeout_s, self._body_late)
        else:
            self._wait(self._limits.header_timeout_s, self._headers_late)

    def _wait(self, timeout_s: float, late: Callable[[], None]) -> None:
        self._timer = self.loop.call_later(timeout_s, self._look_again, late)

    def _look_again(self, late: Callable[[], None]) -> None:
        """Read what arrived while the event loop was blocked before calling anybody late."""
        self._timer = self.loop.call_later(_LOOK_S, late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _headers_late(self) -> None:
        self._timer = None
        if self._answering:  # the next request began early; its time starts once this answer is written
            self._wait(self._limits.header_timeout_s, self._headers_late)
        elif self._in_headers:
            self._end(not_in_time("headers", self._limits.header_timeout_s))
        else:
            self.transport.close()

    def _body_late(self) -> None:
        self._timer = None
        if self._served is not self.cycle:  # nothing is read for a request that waits behind another
            self._wait(self._limits.body_timeout_s, self._body_late)
            return
        self._end(not_in_time("body", self._limits.body_timeout_s))

    def _body_cut_short(self) -> None:
        self._timer = None
        if self._served is self.cycle:
            self._end(gateway_stopping())

    def _end(self, error: ApiError) -> None:
        """Send the error, unless an answer has begun, and close; the request's handler learns that the client left.

        An error of a request that came behind another is sent after that one's answer.
        """
        self._stop_waiting()
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
        self._linger()

    def _end_behind(self, served: RequestResponseCycle, error: ApiError) -> None:
        """Send the error once all requests before the faulty one are answered, and drop what arrives meanwhile."""
        if self.cycle.more_body:  # it waits behind the others
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else served
        self._last = error
        self._in_headers = self._in_body = False
        self._unparsed = memoryview(b"")
        self.flow.resume_reading()

    def _linger(self) -> None:
        """Close once the client has, or soon: a connection that closes before it has read everything is reset, and the
        client may see that instead of the last answer.
        """
        if len(self._shared.lingering) >= _MOST_LINGERING or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._shared.waiting.pop(self, None)
        self._shared.lingering.add(self)
        self.connections.discard(self)
        self._unparsed = memoryview(b"")
        self.flow.resume_reading()
        self._wait(_LINGER_S, self.transport.close)

    def _cut(self) -> None:
        """Close the connection, as if the client had left."""
        self._tell_left()
        self.transport.close()

    def _tell_left(self) -> None:
        """Tell the handler of the request that is being answered that the client has left."""
        if self._served is not None:
            self._served.disconnected = True
            self._served.message_event.set()
