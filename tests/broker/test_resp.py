"""RESP2, however it is cut."""

import random
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError, ResponseError

from orcastream.broker.resp import LoadingError, ProtocolError, ReplyParser, pack

STREAM = (
    b"+OK\r\n:42\r\n$5\r\nhe\r\no\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n"
    b"*3\r\n:-1\r\n*2\r\n$1\r\na\r\n-ERR no\r\n$-1\r\n-OOM full\r\n*1\r\n*1\r\n*0\r\n"
)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return (type(value).__name__, str(value)) if isinstance(value, Exception) else value


EXPECTED = [
    b"OK",
    42,
    b"he\r\no",
    None,
    None,
    [],
    b"",
    [-1, [b"a", ("ResponseError", "ERR no")], None],
    ("OutOfMemoryError", "OOM full"),
    [[[]]],
]


def test_whole() -> None:
    assert _plain(ReplyParser().feed(STREAM)) == EXPECTED


@pytest.mark.parametrize("seed", range(50))
def test_cut_anywhere(seed: int) -> None:
    dice = random.Random(seed)
    parser, replies, position = ReplyParser(), [], 0
    while position < len(STREAM):
        end = position + dice.choice([1, 2, 3, 7, 20])
        replies += parser.feed(STREAM[position:end])
        position = end
    assert _plain(replies) == EXPECTED


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400\r\n", b"$x\r\n", b":one\r\n", b"\r\n"])
def test_garbage(garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        ReplyParser().feed(garbage)


def test_error_classes() -> None:
    errors = ReplyParser().feed(b"-LOADING wait\r\n-OOM full\r\n-no code\r\n")
    assert [type(error) for error in errors] == [LoadingError, OutOfMemoryError, ResponseError]
    assert [error.status_code for error in errors] == ["LOADING", "OOM", "ERR"]


def test_pack() -> None:
    assert pack(("SET", b"\xff", 12)) == b"*3\r\n$3\r\nSET\r\n$1\r\n\xff\r\n$2\r\n12\r\n"
    assert pack(("ECHO", "é")) == b"*2\r\n$4\r\nECHO\r\n$2\r\n\xc3\xa9\r\n"
