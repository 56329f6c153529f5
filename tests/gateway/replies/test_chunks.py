"""Chunks assembled from parts equal, byte for byte, the JSON of the whole chunk."""

import json

import pytest

from orcastream.gateway.openai.answer_shape import AnswerShape
from orcastream.gateway.openai.options import UsageWanted
from orcastream.gateway.replies.chunks import Chunks

TEXTS = ("a", '"quoted" \\ \n', "text", "é 漢 🙂", "\u2028 and \x85", "\x00")


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("id_lines", [False, True])
@pytest.mark.parametrize("model", ["demo", 'text":"text"'])
@pytest.mark.parametrize("request_id", ["cmpl-1", "chatcmpl-1"])
def test_assembled_chunks_equal_whole_chunks(request_id: str, model: str, include_usage: bool, id_lines: bool) -> None:
    shape = AnswerShape(request_id, model, 1_795_270_285, UsageWanted(include_usage))
    chunks = Chunks(shape, id_lines=id_lines)
    for choice in (0, 3, 0):
        for text in TEXTS:
            written = chunks.delta(choice, text, "17,12-9f3a0c1d")
            assert written == chunks.whole(shape.delta(choice, (text,)), "17,12-9f3a0c1d")
            data, *more = written.decode().removesuffix("\n\n").splitlines()
            assert more == (["id: 17,12-9f3a0c1d"] if id_lines else [])
            chunk = json.loads(data.removeprefix("data: "))
            assert chunk.pop("event_id") == "17,12-9f3a0c1d"
            assert chunk == shape.delta(choice, (text,))
