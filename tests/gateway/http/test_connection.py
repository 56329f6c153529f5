"""A real gateway process, and clients that are slow, silent, or too numerous."""

import asyncio
import json
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.gateway.http.conftest import serving
from tests.path.gateway_process import GatewayProcess
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

pytestmark = pytest.mark.server

TIMES_S = 1.0
LONG_S = PATIENCE_S
MAX_CONNECTIONS = 40
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = LIVE[:-2] + b"Connection: close\r\n\r\n"


@pytest.fixture(scope="module")
def impatient(module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with short timeouts."""
    names = ("header_timeout_s", "body_timeout_s", "idle_timeout_s", "write_timeout_s")
    with serving(module_redis, tmp_path_factory.mktemp("gateway"), **dict.fromkeys(names, TIMES_S)) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def narrow(module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with few connections and long timeouts."""
    settings: dict[str, object] = {"max_connections": MAX_CONNECTIONS, "header_timeout_s": LONG_S, "log_level": "debug"}
    with serving(module_redis, tmp_path_factory.mktemp("gateway"), **settings) as gateway:
        yield gateway


def connect(gateway: GatewayProcess, *sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=LONG_S)
    for part in sent:
        connection.sendall(part)
    return connection


def all_of(connection: socket.socket) -> bytes:
    """Return everything received until the server closes."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    connection.close()
    return received


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error_of(answer: bytes, field: str = "message") -> str:
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"][field])


def post(**body: object) -> bytes:
    """A POST of a prompt, which no worker answers here."""
    content = json.dumps({"model": "orca-demo", "prompt": "x", **body}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(content)
    return head + content


def until(connection: socket.socket, end: bytes) -> bytes:
    """Return everything received up to the last bytes of an answer."""
    received = b""
    while not received.endswith(end):
        part = connection.recv(65536)
        assert part, received
        received += part
    return received


def wait_logged(gateway: GatewayProcess, line: str) -> None:
    give_up = time.monotonic() + LONG_S
    while line not in gateway.log:
        assert time.monotonic() < give_up, gateway.log
        time.sleep(0.01)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def is_live(gateway: GatewayProcess) -> bool:
    return httpx.get(f"{gateway.url}/health/live", timeout=LONG_S).status_code == 200


@pytest.mark.parametrize(
    ("sent", "what"),
    [((b"GET /health/li",), "headers"), ((HEAD, b"X-A: b\r\n"), "headers"), ((HEAD, b"\r\n{"), "body")],
    ids=["first line", "headers", "body"],
)
def test_an_incomplete_request_times_out_with_an_error(
    impatient: GatewayProcess, sent: tuple[bytes, ...], what: str
) -> None:
    answer = all_of(connect(impatient, *sent))
    assert status_of(answer) == 408
    assert error_of(answer) == f"The {what} did not arrive within 1 s."
    assert error_of(answer, "code") == f"{what}_timeout"


def test_sending_byte_by_byte_gains_no_time(impatient: GatewayProcess) -> None:
    """Not for headers, for a body, or between two requests."""
    for begin, drop in ((HEAD, b"X"), (HEAD + b"\r\n", b" "), (LIVE, b"\r\n")):
        connection = connect(impatient, begin)
        connection.settimeout(TIMES_S / 20)
        received, give_up = b"", time.monotonic() + LONG_S
        while time.monotonic() < give_up:
            try:
                connection.sendall(drop)
                part = connection.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                break
            if not part:
                break
            received += part
        assert time.monotonic() < give_up
        connection.close()


@pytest.mark.parametrize(
    "sent", [(), (b"\r\n",), (LIVE,), (LIVE, b"\r\n")], ids=["new", "line end", "idle", "idle line end"]
)
def test_silent_connections_are_closed(impatient: GatewayProcess, sent: tuple[bytes, ...]) -> None:
    answer = all_of(connect(impatient, *sent))
    assert answer == b"" if LIVE not in sent else status_of(answer) == 200


def test_three_hundred_slow_clients_are_disconnected_soon(impatient: GatewayProcess) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(impatient, HEAD)) for _ in range(300)]
        assert is_live(impatient)
        assert {status_of(all_of(one)) for one in slow} == {408}
    assert is_live(impatient)


def test_a_client_that_reads_nothing_is_disconnected(impatient: GatewayProcess) -> None:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(LONG_S)
    connection.connect(("127.0.0.1", impatient.port))
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    try:
        while True:  # unread answers, until the server has no buffer space and no patience left
            connection.sendall(asked * 1000)
    except OSError:
        pass
    connection.close()
    assert is_live(impatient)


def test_endless_headers_are_refused(narrow: GatewayProcess) -> None:
    connection = connect(narrow, HEAD)
    try:
        for _ in range(100):
            connection.sendall(b"X-A: " + b"a" * 1000 + b"\r\n")
    except OSError:
        pass
    answer = all_of(connection)
    assert status_of(answer) == 431
    assert "at most 65536 bytes" in error_of(answer)
    assert error_of(answer, "code") == "headers_too_large"


def test_large_headers_are_refused_however_they_arrive(narrow: GatewayProcess) -> None:
    answer = all_of(connect(narrow, LIVE.replace(b"\r\n\r\n", b"\r\nX-A: " + b"a" * 66_000 + b"\r\n\r\n") + LIVE))
    assert (status_of(answer), error_of(answer, "code")) == (431, "headers_too_large")


def test_the_body_before_headers_is_not_counted_as_headers(narrow: GatewayProcess) -> None:
    head = b"POST /health/live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"
    connection = connect(narrow, head + b"x" * 200_000 + LIVE[:10])
    assert status_of(until(connection, b"}")) == 405
    assert is_live(narrow)
    connection.sendall(LIVE[10:].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert status_of(all_of(connection)) == 200


@pytest.mark.parametrize("path", [b"/nowhere", b"/v1/models"], ids=["no such path", "no such method"])
def test_an_answer_instead_of_100_continue_closes_the_connection(narrow: GatewayProcess, path: bytes) -> None:
    """Clients that sent no body, such as Go's, would send their next request in its place."""
    asked = b"POST %b HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n" % path
    answer = all_of(connect(narrow, asked))
    assert status_of(answer) in (404, 405)
    assert b"\r\nconnection: close\r\n" in answer
    live = LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    whole = all_of(connect(narrow, asked + b"123456789" + live))  # sent without waiting, so the body is known to come
    assert whole.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 200 " in whole


@pytest.mark.parametrize("expected", [b"200-ok", b"100-continue, tea", b"100-continue\r\nExpect: tea"])
def test_an_unknown_expectation_is_refused(narrow: GatewayProcess, expected: bytes) -> None:
    """At once: the client may wait for an answer before it sends its body."""
    head, _, body = post(stream=True, request_id="tea").partition(b"\r\n\r\n")
    refused = head + b"\r\nExpect: " + expected + b"\r\n\r\n"
    answer = all_of(connect(narrow, refused))
    assert (status_of(answer), error_of(answer, "code")) == (417, "unknown_expectation")
    assert b"\r\nconnection: close\r\n" in answer
    whole = all_of(connect(narrow, LIVE + refused + body))  # behind another, and with its body
    assert (status_of(whole), whole.count(b"HTTP/1.1 ")) == (200, 2)
    assert b"HTTP/1.1 417 " in whole


def test_expectations_are_read_without_case(narrow: GatewayProcess) -> None:
    head, _, body = post(stream=True, request_id="case").partition(b"\r\n\r\n")
    with connect(narrow, head + b"\r\nExpect: 100-Continue\r\n\r\n") as connection:
        assert until(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert status_of(connection.recv(65536)) == 200


def test_white_space_after_a_header_is_no_part_of_it(narrow: GatewayProcess) -> None:
    headers = b"\r\nIdempotency-Key: spaced \t\r\nExpect: 100-continue \r\n\r\n"
    request = post(stream=True, request_id="spaced").replace(b"\r\n\r\n", headers, 1)
    with connect(narrow, request[:-1]) as connection:
        assert until(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(request[-1:])
        assert status_of(connection.recv(65536)) == 200


CHUNKED = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"


def test_trailers_are_no_headers(narrow: GatewayProcess) -> None:
    with connect(narrow, CHUNKED + b"Host: example.org\r\nExpect: 100-continue\r\n\r\n") as connection:
        assert status_of(until(connection, b"}}")) == 404  # two hosts would be refused


@pytest.mark.parametrize("trailer", [b"X: " + b"y" * 1000 + b"\r\n", b"y" * 1000], ids=["many", "one"])
def test_endless_trailers_are_refused(narrow: GatewayProcess, trailer: bytes) -> None:
    connection = connect(narrow, CHUNKED + b"X: ")
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        connection.sendall(trailer * 100_000)
    connection.close()


def test_invalid_http_gets_an_error_in_the_apis_form(narrow: GatewayProcess) -> None:
    answer = all_of(connect(narrow, b"\x16\x03\x01\r\n\r\n"))
    assert status_of(answer) == 400
    assert error_of(answer)


def test_an_excess_connection_replaces_an_idle_one(narrow: GatewayProcess) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(connect(narrow, HEAD))
        rest = [stack.enter_context(connect(narrow, HEAD)) for _ in range(MAX_CONNECTIONS * 2)]
        assert all_of(first) == b""
        for one in rest[:-MAX_CONNECTIONS]:
            assert all_of(one) == b""
        assert is_live(narrow)


def test_an_excess_connection_is_refused_if_all_are_busy(narrow: GatewayProcess) -> None:
    with ExitStack() as stack:
        busy = [stack.enter_context(connect(narrow, HEAD, b"\r\n{")) for _ in range(MAX_CONNECTIONS)]
        answer = all_of(stack.enter_context(connect(narrow)))
        assert status_of(answer) == 503
        assert b"\r\nretry-after: 1\r\n" in answer
        busy.pop().close()
        for _ in range(1000):
            if status_of(all_of(connect(narrow, LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")))) == 200:
                break
        else:
            pytest.fail("the slot of a client that left is not given to another")


async def test_a_refused_connection_gets_its_answer_while_it_sends(narrow: GatewayProcess) -> None:
    """asyncio tells its client, as httpx's, that a connection was reset, instead of what arrived before that."""

    async def refused(size: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", narrow.port)
        writer.write(post(prompt="x" * size))
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return status_of(answer)

    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(connect(narrow, HEAD, b"\r\n{"))
        for size in (1000, 1_000_000):
            assert {await refused(size) for _ in range(20)} == {503}


def test_a_silent_stream_is_not_idle(impatient: GatewayProcess) -> None:
    """No worker answers here: a stream waits longer than all timeouts, and the connection stays open."""
    body = json.dumps({"model": "orca-demo", "prompt": "x", "stream": True, "timeout": TIMES_S * 4})
    with httpx.stream("POST", f"{impatient.url}/v1/completions", content=body, timeout=LONG_S) as response:
        events = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "expired"


def test_a_connection_serves_one_request_after_another(narrow: GatewayProcess) -> None:
    with httpx.Client(base_url=narrow.url, timeout=LONG_S) as client:
        assert [client.get("/v1/models").status_code for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_request_that_offers_an_upgrade_is_served_with_its_body(narrow: GatewayProcess, framing: str) -> None:
    """Java's HttpClient offers HTTP/2 so, and curl with `--http2`."""
    body = b'{"model": "orca-demo", "prompt": ""}'
    length, sent = b"Content-Length: %d" % len(body), body
    if framing == "chunks":
        length, sent = b"Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%b\r\n%b\r\n" % (length, offer)
    last = LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    first, second, third = all_of(connect(narrow, head, sent, head + sent + last)).split(b"HTTP/1.1 ")[1:]
    assert [answer.split()[0] for answer in (first, second, third)] == [b"400", b"400", b"200"]
    assert error_of(first) == error_of(second) == "prompt: got '', allowed: text of at least one token"


def test_an_offered_upgrade_may_be_the_last_request(narrow: GatewayProcess) -> None:
    offer = LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close, Upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert status_of(all_of(connect(narrow, offer))) == 200
    assert status_of(all_of(connect(narrow, offer.replace(b"HTTP/1.1", b"HTTP/1.0")))) == 200


def test_a_client_of_http_1_0_gets_its_stream_without_chunks(narrow: GatewayProcess) -> None:
    body = b'{"model": "orca-demo", "prompt": "x", "stream": true, "timeout": 0.1}'
    head = b"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    headers, _, events = all_of(connect(narrow, head, body)).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers
    assert events.startswith(b"data: ")
    assert json.loads(events.partition(b"data: ")[2])["error"]["code"] == "expired"
    expecting = all_of(connect(narrow, head.replace(b"Host", b"Expect: 100-continue\r\nHost"), body))
    assert status_of(expecting) == 200
    length = all_of(connect(narrow, LIVE.replace(b"1.1", b"1.0")))
    assert b"\r\ncontent-length: " in length
    assert json.loads(length.partition(b"\r\n\r\n")[2])


def test_a_stream_continues_while_the_next_request_of_its_connection_is_incomplete(impatient: GatewayProcess) -> None:
    """Its body is not read until the stream has ended, so only then can it be late."""
    connection = connect(impatient, post(stream=True, timeout=TIMES_S * 3), HEAD + b"\r\n")
    stream = until(connection, b"\r\n0\r\n\r\n")
    assert b'"code":"expired"' in stream
    assert stream.count(b"HTTP/1.1 ") == 1
    connection.sendall(b" " * 100)
    assert status_of(connection.recv(65536)) == 400
    connection.close()


def test_a_body_that_waits_behind_a_stream_has_its_time_after_the_stream(impatient: GatewayProcess) -> None:
    connection = connect(impatient, post(stream=True, timeout=TIMES_S * 2.5), HEAD + b"\r\n")
    assert until(connection, b"\r\n0\r\n\r\n").count(b"HTTP/1.1 ") == 1
    ended_s = time.monotonic()
    assert status_of(connection.recv(65536)) == 408
    assert time.monotonic() - ended_s > TIMES_S * 0.3
    connection.close()


def test_a_client_that_leaves_with_two_requests_under_way_leaves_both(narrow: GatewayProcess) -> None:
    connection = connect(narrow, post(request_id="left", timeout=LONG_S) + LIVE)
    wait_logged(narrow, "accepted request=cmpl-left ")
    connection.close()
    wait_logged(narrow, "disconnected request=cmpl-left\n")


def test_a_client_that_leaves_behind_later_requests_leaves_all(narrow: GatewayProcess) -> None:
    """They arrive once the gateway waits for the first one's answer."""
    for number, later in enumerate((LIVE, LIVE * 500)):
        connection = connect(narrow, post(request_id=f"left-{number}", timeout=LONG_S))
        wait_logged(narrow, f"accepted request=cmpl-left-{number} ")
        connection.sendall(later)
        connection.close()
        wait_logged(narrow, f"disconnected request=cmpl-left-{number}\n")


def test_a_client_that_leaves_behind_more_than_is_held_is_noticed_in_time(
    module_redis: RedisServer, tmp_path: Path
) -> None:
    with serving(module_redis, tmp_path, header_timeout_s=TIMES_S, log_level="debug") as gateway:
        connection = connect(gateway, post(request_id="left-late", timeout=LONG_S))
        wait_logged(gateway, "accepted request=cmpl-left-late ")
        connection.sendall(LIVE * 100_000)  # more than all buffers take, so much is sent only once it is read again
        connection.close()
        wait_logged(gateway, "disconnected request=cmpl-left-late\n")


@pytest.mark.parametrize("behind", [post(prompt="x" * 100_000), LIVE * 5000], ids=["body", "requests"])
def test_what_is_held_too_long_behind_a_request_is_refused_after_its_answer(
    impatient: GatewayProcess, behind: bytes
) -> None:
    with connect(impatient, post(timeout=TIMES_S * 3)) as connection:
        connection.sendall(behind)
        first, *between, last = all_of(connection).split(b"HTTP/1.1 ")[1:]
    assert b'"code":"expired"' in first
    assert {int(answer[:3]) for answer in between} <= {200}
    assert (last[:3], error_of(last, "code")) == (b"503", "connection_full")


def test_what_waits_behind_a_stream_is_answered_however_much_it_is(impatient: GatewayProcess) -> None:
    with connect(impatient, post(timeout=TIMES_S * 3, stream=True)) as connection:
        connection.sendall(LIVE * 5000 + LAST)
        stream, *others = all_of(connection).split(b"HTTP/1.1 ")[1:]
    assert b'"code":"expired"' in stream
    assert [int(answer[:3]) for answer in others] == [200] * 5001


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("behind", "statuses"),
    [
        (b"nonsense\r\n\r\n", [400]),
        (LIVE[:-2] + b"X-A: %b\r\n\r\n" % (b"a" * 70_000), [431]),
        (LIVE + LIVE + b"nonsense\r\n\r\n" + LIVE, [200, 200, 400]),
        (LIVE + CHUNKED[:-3] + b"nonsense\r\n", [200, 400]),
    ],
)
def test_an_error_behind_a_request_takes_nothing_from_its_answer(
    narrow: GatewayProcess, stream: bool, behind: bytes, statuses: list[int]
) -> None:
    own = f"before-{stream}-{len(behind)}"
    connection = connect(narrow, post(request_id=own, timeout=1, stream=stream))
    wait_logged(narrow, f"accepted request=cmpl-{own} ")
    connection.sendall(behind)
    first, *others = all_of(connection).split(b"HTTP/1.1 ")[1:]
    assert b'"code":"expired"' in first
    assert first.startswith(b"200" if stream else b"504")
    assert [int(answer[:3]) for answer in others] == statuses


def test_a_client_that_waits_before_it_sends_a_body_too_large_need_not_send_it(narrow: GatewayProcess) -> None:
    head = HEAD.replace(b"Length: 100", b"Length: 60000000") + b"Expect: 100-continue\r\n\r\n"
    answer = all_of(connect(narrow, head))
    assert (status_of(answer), error_of(answer, "code")) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", 404),
        (b"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Encoding: gzip\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n", 421),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", 413),
    ],
    ids=["no such path", "compressed", "another host", "too large"],
)
def test_an_error_before_the_end_of_a_body_reaches_a_client_that_sends_on(
    narrow: GatewayProcess, head: bytes, status: int
) -> None:
    """A proxy that sees a reset while it sends, as nginx's default connections would, makes a 502 of any error."""
    body = b"x" * (5_000_000 if status == 413 else 3_000_000)
    connection = connect(narrow, head + b"Content-Length: %d\r\n\r\n" % len(body), body + LIVE)
    received = b""
    while part := connection.recv(65536):  # a reset would raise
        received += part
    assert (status_of(received), received.count(b"HTTP/1.1 ")) == (status, 1)
    connection.close()


def test_a_body_without_end_is_not_dropped_forever(narrow: GatewayProcess) -> None:
    head = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n%b\r\n" % (b"x" * 2**20)
    with connect(narrow, head) as connection, pytest.raises((ConnectionResetError, BrokenPipeError)):
        connection.sendall(chunk * 200)


def test_a_body_that_stops_gets_one_error(impatient: GatewayProcess) -> None:
    """Not that of its path, then another for being late."""
    head = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    answer = all_of(connect(impatient, head))
    assert (status_of(answer), answer.count(b"HTTP/1.1 ")) == (408, 1)


def test_a_gateway_that_stops_answers_requests_whose_bodies_are_incomplete(
    module_redis: RedisServer, tmp_path: Path
) -> None:
    incomplete = HEAD + b"\r\n{"
    with serving(module_redis, tmp_path, shutdown_grace_s=0.1) as gateway:
        elsewhere = incomplete.replace(b"/v1/completions", b"/nowhere")
        behind = [post(timeout=LONG_S, stream=stream) + incomplete for stream in (True, False)]
        waiting = [connect(gateway, sent) for sent in (incomplete, elsewhere, *behind)]
        assert is_live(gateway)  # after it has read those
        gateway.signal(signal.SIGTERM)
        answers = [all_of(connection).split(b"HTTP/1.1 ")[1:] for connection in waiting]
        assert [len(each) for each in answers] == [1, 1, 2, 2]
        assert {(each[-1][:3], error_of(each[-1], "code")) for each in answers} == {(b"503", "gateway_stopping")}
        assert gateway.wait() == 0
        assert "Traceback" not in gateway.log


def test_a_gateway_that_stops_does_not_wait_for_a_client_that_reads_nothing(
    module_redis: RedisServer, tmp_path: Path
) -> None:
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(module_redis, tmp_path, shutdown_grace_s=0) as gateway, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", gateway.port))
        connection.sendall(asked * 1000)
        wait_logged(gateway, "/openapi.json")
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0
        assert "Traceback" not in gateway.log


@pytest.mark.parametrize("path", [b"/v1/completions", b"/v1/files"])
@pytest.mark.parametrize("codings", [b"gzip, chunked", b"gzip\r\nTransfer-Encoding: chunked"])
def test_a_body_in_another_transfer_coding_than_chunks_is_refused(
    narrow: GatewayProcess, path: bytes, codings: bytes
) -> None:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % path
    answer = all_of(connect(narrow, head + b"Transfer-Encoding: %b\r\n\r\n2\r\n{}\r\n0\r\n\r\n" % codings))
    assert (status_of(answer), error_of(answer, "param")) == (400, "Transfer-Encoding")


def test_requests_behind_others_are_answered_in_order(narrow: GatewayProcess) -> None:
    """Sent at once, some with bodies longer than what is parsed at once."""
    body = b'{"model": "orca-demo", "prompt": 1%b}' % (b" " * 10_000)
    wrong = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    asked = [LIVE, wrong, LIVE.replace(b"live", b"none"), LIVE] * 100
    connection = connect(narrow)
    sending = threading.Thread(target=connection.sendall, args=(b"".join(asked[:-1]) + LAST,))
    sending.start()
    answers = all_of(connection).split(b"HTTP/1.1 ")[1:]
    sending.join()
    assert [int(answer[:3]) for answer in answers] == [200, 400, 404, 200] * 100


def test_requests_behind_others_take_little_memory_however_many_they_are(narrow: GatewayProcess) -> None:
    connection, before_bytes = connect(narrow), resident_bytes(narrow.pid)
    many = LIVE * 1000

    def send() -> None:
        with suppress(OSError):
            while True:
                connection.sendall(many)

    sending = threading.Thread(target=send)
    sending.start()
    count = 0
    while count < 20:
        count += connection.recv(4096).count(b"HTTP/1.1 200")
    grown_bytes = resident_bytes(narrow.pid) - before_bytes
    connection.shutdown(socket.SHUT_RDWR)
    sending.join()
    connection.close()
    assert grown_bytes < 64 << 20
