"""Log probabilities over HTTP: of every token, whole and streamed, including resumed streams."""

import asyncio
import json
from types import TracebackType
from typing import Any, Self

import pytest

from orcastream.gateway.openai import encoded_json
from orcastream.text.token_text import token_text
from tests.gateway.conftest import MODEL, TEXT, Stage
from tests.gateway.scripted_worker import Answer, logprobs_of
from tests.gateway.sse_client import read

MESSAGES: Any = [{"role": "user", "content": "hi"}]
TEXTS = (TEXT, "plain")


def answer(stage: Stage, group: int = 1) -> Answer:
    return Answer([stage.tokenizer.encode(text) for text in TEXTS], group=group, logprobs=True)


def expected_chat(stage: Stage, ids: list[int]) -> list[dict[str, Any]]:
    """Return a chat's log probabilities for the scripted worker's numbers."""

    def told(token: int, logprob: float) -> dict[str, Any]:
        raw = stage.tokenizer.token_bytes[token]  # type: ignore[index]
        return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}

    items = [(token, logprobs_of(token, position)) for position, token in enumerate(ids)]
    return [
        {**told(token, own), "top_logprobs": [told(*each) for each in likeliest]} for token, (own, likeliest) in items
    ]


async def test_a_whole_chat(stage: Stage) -> None:
    worker = await stage.worker(answer(stage))
    client = (await stage.gateway()).openai()
    made = await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2, logprobs=True, top_logprobs=2)
    assert worker.requests[0].payload.logprobs == 2
    for choice, text in zip(made.choices, TEXTS, strict=True):
        assert choice.message.content == text
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        told = [token.model_dump() for token in choice.logprobs.content]
        assert told == expected_chat(stage, stage.tokenizer.encode(text))
        assert b"".join(bytes(token["bytes"]) for token in told).decode() == text


@pytest.mark.parametrize("group", [1, 3])
async def test_a_streamed_chat(stage: Stage, group: int) -> None:
    await stage.worker(answer(stage, group))
    client = (await stage.gateway()).openai()
    stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2, logprobs=True, stream=True)
    texts, told = ["", ""], [[], []]  # type: ignore[var-annotated]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.logprobs is not None:
                told[choice.index] += [token.model_dump() for token in choice.logprobs.content or ()]
    assert texts == [*TEXTS]
    assert told == [expected_chat(stage, stage.tokenizer.encode(text)) for text in TEXTS]


async def test_completions(stage: Stage) -> None:
    await stage.worker(answer(stage, group=2))
    client = (await stage.gateway()).openai()
    whole = (await client.completions.create(model=MODEL, prompt="x", n=2, logprobs=2)).choices
    for choice, text in zip(whole, TEXTS, strict=True):
        told = choice.logprobs
        assert told is not None
        ids = stage.tokenizer.encode(text)
        assert told.token_logprobs == [logprobs_of(token, position)[0] for position, token in enumerate(ids)]
        names = [token_text(stage.tokenizer, token) for token in ids]
        assert told.tokens == [
            name.text if name.is_text else "bytes:" + "".join(f"\\x{byte:02x}" for byte in name.raw) for name in names
        ]
        assert told.text_offset is not None
        for name, offset in zip(names, told.text_offset, strict=True):
            assert not name.is_text or text[offset : offset + len(name.text)] == name.text
        assert told.top_logprobs is not None
        assert [max(likely.values()) for likely in told.top_logprobs] == told.token_logprobs
    stream = await client.completions.create(model=MODEL, prompt="x", n=2, logprobs=2, stream=True)
    parts: list[dict[str, list[Any]]] = [{}, {}]
    async for chunk in stream:
        for each in chunk.choices:
            for key, values in (each.logprobs.model_dump() if each.logprobs else {}).items():
                parts[each.index].setdefault(key, []).extend(values)
    assert parts == [choice.logprobs.model_dump() for choice in whole if choice.logprobs]


async def test_a_token_after_broken_bytes_begins_after_them(stage: Stage) -> None:
    broken = stage.tokenizer.encode("ab👍")[:-1]
    ids = [*broken, *stage.tokenizer.encode("cd END")]
    cut = Answer([ids], group=len(ids), text_length=3, logprobs=True)
    await stage.worker(lambda request: cut if request.payload.stop else Answer([ids], logprobs=True))
    client = (await stage.gateway()).openai()
    for stop, text in ([], "ab\ufffdcd END"), (["cd"], "ab\ufffd"):
        made = (await client.completions.create(model=MODEL, prompt="x", stop=stop, logprobs=0)).choices[0]
        assert made.text == text
        assert made.logprobs is not None
        assert made.logprobs.tokens is not None
        assert made.logprobs.text_offset is not None
        names = list(zip(made.logprobs.tokens, made.logprobs.text_offset, strict=True))
        assert len(names) == len(broken if stop else ids)
        assert all(name.startswith("bytes:") or text[begin:].startswith(name) for name, begin in names)


async def test_tokens_cut_off_by_a_stop_string_are_not_reported(stage: Stage) -> None:
    ids = stage.tokenizer.encode("abc END")
    await stage.worker(Answer([ids], group=len(ids), text_length=4, logprobs=True))
    client = (await stage.gateway()).openai()
    made = await client.completions.create(model=MODEL, prompt="x", stop=["END"], logprobs=0)
    assert made.choices[0].text == "abc "
    assert made.choices[0].logprobs is not None
    assert "".join(made.choices[0].logprobs.tokens or ()).startswith("abc")
    assert "END" not in "".join(made.choices[0].logprobs.tokens or ())


async def test_a_resumed_stream_reports_each_once(stage: Stage) -> None:
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], logprobs=True))
    served = await stage.gateway()
    http = served.http()
    body = {"model": MODEL, "messages": MESSAGES, "stream": True, "logprobs": True}
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        request_id = response.headers["x-request-id"]
        events = [event async for event in read(response)]

    def tokens(some: list[Any]) -> list[Any]:
        choices = [choice for event in some if event.texts for choice in event.data["choices"]]
        return [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["content"]]

    assert tokens(events) == json.loads(json.dumps(expected_chat(stage, stage.tokenizer.encode(TEXT))))
    other = await stage.gateway()
    for number in (2, len(events) // 2, len(events) - 4):
        headers = {"Last-Event-ID": events[number].last_id or ""}
        path = f"/v1/requests/{request_id}/events"
        async with other.http().stream("GET", path, headers=headers) as again:
            rest = [event async for event in read(again)]
        assert tokens(events[: number + 1]) + tokens(rest) == tokens(events)


ASKING: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "n": 2, "logprobs": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "n": 2, "logprobs": True, "top_logprobs": 2},
    "/v1/responses": {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
}
TURN_BYTES = 64 * 1024


class TurnWatch:
    """Counts the bytes of JSON that the gateway encodes in each turn of the event loop, which the test shares."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.encoded_bytes = [0]
        written = encoded_json._on_one_line

        def counted(body: str) -> bytes:
            line = written(body)
            self.encoded_bytes[-1] += len(line)
            return line

        monkeypatch.setattr(encoded_json, "_on_one_line", counted)

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            self.encoded_bytes.append(0)
            await asyncio.sleep(0)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", ASKING)
async def test_no_turn_of_the_loop_grows_with_the_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, path: str, streamed: bool
) -> None:
    """The whole answer is available at once, as with ranked choices."""
    ids = (stage.tokenizer.encode("abcdefgh") * 5000)[:5000]
    await stage.worker(Answer([ids] * ASKING[path].get("n", 1), group=len(ids), logprobs=True))
    http = (await stage.gateway()).http()
    async with TurnWatch(monkeypatch) as watch:
        response = await http.post(path, json={"model": MODEL, "stream": streamed, **ASKING[path]})
    assert response.status_code == 200, response.text
    assert sum(watch.encoded_bytes) > 5 * TURN_BYTES
    assert max(watch.encoded_bytes) <= TURN_BYTES
