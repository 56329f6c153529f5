"""Chunks that are put together say, byte for byte, what JSON of the whole chunk says."""

import pytest

from gateway.chunks import Chunks
from gateway.openai_shape import Shape
from gateway.sse import event

TEXTS = ("a", '"quoted" \\ \n', "text", "é 漢 🙂", "\u2028 and \x85", "\x00")


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("model", ["demo", 'text":"text"'])
@pytest.mark.parametrize("request_id", ["cmpl-1", "chatcmpl-1"])
def test_as_whole_chunks(request_id: str, model: str, include_usage: bool) -> None:
    shape = Shape(request_id, model, 1_795_270_285, include_usage)
    chunks = Chunks(shape)
    for choice in (0, 3, 0):
        for text in TEXTS:
            written = chunks.delta(choice, text, "17,12-9f3a0c1d")
            assert written == event(shape.delta(choice, text), "17,12-9f3a0c1d")
            head, data = written.split(b"\n", 1)
            assert head == b"id: 17,12-9f3a0c1d"
            assert len(data.decode().splitlines()) == 2
