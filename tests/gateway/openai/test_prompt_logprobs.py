"""`echo` with `logprobs`, and `prompt_logprobs`: a completion's data about its prompt, whole and streamed."""

import json
from typing import Any

import pytest

from orcastream.gateway.openai.encoded_json import encoded
from orcastream.gateway.openai.opening import Opening
from orcastream.gateway.replies.prompt_text import PromptText
from orcastream.schemas.events import PromptRun
from orcastream.schemas.stopping import FinishReason
from orcastream.text.token_text import token_text
from orcastream.text.tokenizer import Tokenizer
from tests.gateway.conftest import MODEL, TEXT, Stage
from tests.gateway.scripted_worker import Answer, Gate, logprobs_of
from tests.gateway.sse_client import read

PROMPT = "Über 3 Wölfe: 世界 "
TEXTS = (TEXT, "plain")
PATH = "/v1/completions"


def answer(stage: Stage) -> Answer:
    return Answer([stage.tokenizer.encode(text) for text in TEXTS], group=2, logprobs=True)


def name(tokenizer: Tokenizer, token: int) -> str:
    own = token_text(tokenizer, token)
    return own.text if own.is_text else "bytes:" + "".join(f"\\x{byte:02x}" for byte in own.raw)


def expected(tokenizer: Tokenizer, prompt: str, text: str) -> dict[str, list[Any]]:
    """Return OpenAI's lists, of the prompt and then of the answer, without the text offsets."""
    told: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
    for part in (prompt, text):
        for position, token in enumerate(tokenizer.encode(part)):
            told["tokens"].append(name(tokenizer, token))
            if part is prompt and not position:
                told["token_logprobs"].append(None)
                told["top_logprobs"].append(None)
                continue
            own, likeliest = logprobs_of(token, position)
            told["token_logprobs"].append(own)
            told["top_logprobs"].append({name(tokenizer, other): value for other, value in likeliest})
    return told


def check_places(tokenizer: Tokenizer, choice: dict[str, Any], prompt: str) -> None:
    """Check that each token is at its offset in the text."""
    places, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    assert len(places) == len(tokens)
    for token, place in zip(tokens, places, strict=True):
        assert token.startswith("bytes:") or choice["text"][place : place + len(token)] == token
    assert places[len(tokenizer.encode(prompt))] == len(prompt)


def gathered(events: list[Any], count: int) -> list[dict[str, Any]]:
    """Return the choices of a stream, assembled."""
    choices = [{"text": "", "logprobs": {}, "finish_reason": None} for _ in range(count)]
    for event in events:
        for each in event["choices"]:
            choice: dict[str, Any] = choices[each["index"]]
            choice["text"] += each["text"]
            choice["finish_reason"] = each["finish_reason"] or choice["finish_reason"]
            for key, values in (each["logprobs"] or {}).items():
                choice["logprobs"].setdefault(key, []).extend(values)
            if "prompt_logprobs" in each:
                choice["prompt_logprobs"] = each["prompt_logprobs"]
    return choices


async def post(stage: Stage, body: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the choices, which are the same whole and streamed."""
    served = await stage.gateway()
    response = await served.http().post(PATH, json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    whole = response.json()["choices"]
    async with served.http().stream("POST", PATH, json={"model": MODEL, **body, "stream": True}) as streamed:
        events = [event.data async for event in read(streamed) if isinstance(event.data, dict)]
    names = ("text", "logprobs", "finish_reason", "prompt_logprobs")
    assert [each["index"] for each in whole] == list(range(count))
    made = [{key: each[key] for key in names if key in each} for each in whole]
    assert gathered(events, count) == [{**each, "logprobs": each["logprobs"] or {}} for each in made]
    return made


@pytest.mark.parametrize("as_ids", [False, True])
async def test_an_echo_covers_prompt_and_answer(stage: Stage, as_ids: bool) -> None:
    worker = await stage.worker(answer(stage))
    prompts = [PROMPT, "other "]
    sent = [stage.tokenizer.encode(each) for each in prompts] if as_ids else prompts
    choices = await post(stage, {"prompt": sent, "n": 2, "echo": True, "logprobs": 2}, 4)
    for index, choice in enumerate(choices):
        prompt, text = prompts[index // 2], TEXTS[index % 2]
        assert choice["text"] == prompt + text
        told = expected(stage.tokenizer, prompt, text)
        assert {key: choice["logprobs"][key] for key in told} == told
        check_places(stage.tokenizer, choice, prompt)
    assert {(each.payload.logprobs, each.payload.prompt_logprobs) for each in worker.requests} == {(2, 2)}


async def test_an_echo_without_an_answer(stage: Stage) -> None:
    worker = await stage.worker(Answer([[]], finish_reason=FinishReason.LENGTH))
    ids = stage.tokenizer.encode(PROMPT)
    (choice,) = await post(stage, {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 0}, 1)
    told = choice["logprobs"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert told["token_logprobs"] == [None, *(logprobs_of(token, at)[0] for at, token in enumerate(ids) if at)]
    assert [len(likely) for likely in told["top_logprobs"][1:]] == [1] * (len(ids) - 1)
    (plain,) = await post(stage, {"prompt": ids, "echo": True, "max_tokens": 0}, 1)
    assert plain == {"text": PROMPT, "logprobs": None, "finish_reason": "length"}
    assert [each.payload.max_tokens for each in worker.requests] == [0] * 4
    assert worker.requests[-1].payload.prompt_logprobs is None


async def test_a_repeated_id_returns_the_first_requests_prompt(stage: Stage) -> None:
    worker = await stage.worker()
    told = {"echo": True, "logprobs": 1, "prompt_logprobs": 2}
    first = {"prompt": PROMPT, "request_id": "first", **told}
    (asked,) = await post(stage, first, 1)
    assert asked["text"] == PROMPT + TEXT
    same_length = [5] * len(stage.tokenizer.encode(PROMPT))
    for other in ("Hi", same_length):
        assert await post(stage, {**first, "prompt": other}, 1) == [asked]
    (asked,) = await post(stage, {"prompt": PROMPT, "request_id": "plain"}, 1)
    assert asked["text"] == TEXT
    assert await post(stage, {"prompt": "Hi", "request_id": "plain", **told}, 1) == [asked]
    first = {"prompt": PROMPT, "request_id": "echo", "echo": True}
    assert await post(stage, first, 1) == await post(stage, first, 1) == [{**asked, "text": PROMPT + TEXT}]
    assert len(worker.requests) == 3


async def test_a_repeated_id_returns_the_first_requests_prompt_while_it_runs(stage: Stage) -> None:
    gate = Gate(1)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    http = (await stage.gateway()).http()
    body = {"model": MODEL, "request_id": "first", "stream": True}
    async with http.stream("POST", PATH, json={**body, "prompt": PROMPT}) as first:
        await anext(read(first))
        again = {**body, "prompt": "Hi", "echo": True, "logprobs": 1}
        async with http.stream("POST", PATH, json=again) as repeated:
            events = read(repeated)
            opening = await anext(events)
            await gate.open()
            rest = [event async for event in events]
    [told] = gathered([event.data for event in (opening, *rest) if isinstance(event.data, dict)], 1)
    assert told == {"text": PROMPT + TEXT, "logprobs": {}, "finish_reason": "stop"}


async def test_prompt_logprobs_have_vllms_form(stage: Stage) -> None:
    worker = await stage.worker(answer(stage))
    ids = stage.tokenizer.encode(PROMPT)
    choices = await post(stage, {"prompt": PROMPT, "n": 2, "prompt_logprobs": 2}, 2)
    assert choices[0]["prompt_logprobs"] == choices[1]["prompt_logprobs"]
    first, *others = choices[0]["prompt_logprobs"]
    assert first is None
    for position, (token, told) in enumerate(zip(ids[1:], others, strict=True), start=1):
        own, _ = logprobs_of(token, position)
        assert list(told) == [str(token), str(token + 1)]
        text = token_text(stage.tokenizer, token).text
        assert told[str(token)] == {"logprob": own, "rank": 1, "decoded_token": text}
        assert told[str(token + 1)]["rank"] == 2
    assert [choice["text"] for choice in choices] == [*TEXTS]
    assert all(choice["logprobs"] is None or choice["logprobs"]["token_logprobs"][0] for choice in choices)
    assert {each.payload.prompt_logprobs for each in worker.requests} == {2}


async def test_echo_and_prompt_logprobs_each_return_the_requested_number(stage: Stage) -> None:
    worker = await stage.worker(Answer([[]], finish_reason=FinishReason.LENGTH))
    body = {"prompt": PROMPT, "echo": True, "logprobs": 0, "prompt_logprobs": 2, "max_tokens": 0}
    (choice,) = await post(stage, body, 1)
    assert [len(likely) for likely in choice["logprobs"]["top_logprobs"][1:]] == [1] * (
        len(choice["prompt_logprobs"]) - 1
    )
    assert [len(likely) for likely in choice["prompt_logprobs"][1:]] == [2] * (len(choice["prompt_logprobs"]) - 1)
    assert {each.payload.prompt_logprobs for each in worker.requests} == {2}


async def test_a_reread_reply_includes_its_prompt(stage: Stage) -> None:
    await stage.worker(answer(stage))
    served = await stage.gateway()
    body = {"model": MODEL, "prompt": PROMPT, "echo": True, "logprobs": 1, "request_id": "again", "n": 2}
    assert (await served.http().post(PATH, json=body)).status_code == 200
    async with served.http().stream("GET", "/v1/requests/cmpl-again/events") as response:
        events = [event.data async for event in read(response) if isinstance(event.data, dict)]
    choices = gathered(events, 2)
    assert [choice["text"] for choice in choices] == [*TEXTS]
    ids = stage.tokenizer.encode(PROMPT)
    for choice in choices:
        assert len(choice["prompt_logprobs"]) == len(ids)
        assert choice["prompt_logprobs"][1][str(ids[1])]["logprob"] == logprobs_of(ids[1], 1)[0]


@pytest.mark.parametrize(
    ("body", "param", "told"),
    [
        ({"max_tokens": 0}, "max_tokens", "at least 1 without echo"),
        ({"echo": True, "logprobs": 1, "use_beam_search": True}, "logprobs", "nothing with use_beam_search"),
        ({"prompt_logprobs": 1.5}, "prompt_logprobs", "an integer from 0 to 20"),
        ({"echo": True, "max_tokens": 0, "best_of": 2}, "max_tokens", "at least 1 where choices are ranked"),
    ],
)
async def test_refused_requests(stage: Stage, body: dict[str, Any], param: str, told: str) -> None:
    await stage.worker()
    response = await (await stage.gateway()).http().post(PATH, json={"model": MODEL, "prompt": "x", **body})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert told in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "param", "number"),
    [
        ({"echo": True, "logprobs": 1}, "logprobs", 528_384),
        ({"prompt_logprobs": 1}, "prompt_logprobs", 528_384),
        ({"echo": True, "logprobs": 0, "prompt_logprobs": 1}, "prompt_logprobs", 792_576),
    ],
)
async def test_an_answer_that_would_be_too_large_is_refused(
    stage: Stage, stream: bool, asked: dict[str, Any], param: str, number: int
) -> None:
    worker = await stage.worker()
    body = {"model": MODEL, "prompt": [[5] * 129] * 128, "n": 16, "stream": stream, **asked}
    response = await (await stage.gateway()).http().post(PATH, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(f"{param}: got 1, allowed: a value that gives at most 524288 log probabilities")
    assert f"not {number}" in error["message"]
    assert not worker.requests


async def test_a_chat_returns_no_prompt_data(stage: Stage) -> None:
    await stage.worker()
    http = (await stage.gateway()).http()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 1}
    error = (await http.post("/v1/chat/completions", json=body)).json()["error"]
    assert (error["param"], error["code"]) == ("prompt_logprobs", "unsupported_parameter")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 0}
    error = (await http.post("/v1/chat/completions", json=body)).json()["error"]
    assert error["param"] == "max_tokens"


TOLD = [[-0.5, [[5, -0.5], [6, -1.0]]], [-4.0, [[5, -0.5], [6, -1.0]]], [-1.0, [[5, -1.0], [6, -1.0]]]]
"""Of the tokens 5, 9 and 6: the first of the likeliest, none of them, and as likely as another."""


def ranks_of(tokenizer: Tokenizer, ranks: tuple[int | None, ...] | None, count: int) -> list[dict[str, int | None]]:
    """Return ranks by token id, as in the answer, for a prompt whose log has `ranks`."""
    prompt = PromptText(tokenizer, Opening(prompt_logprobs=count))
    prompt.take(PromptRun(1, (5, 9, 6), tuple(TOLD), ranks))
    (maps,) = json.loads(encoded(prompt.told.fields())).values()
    return [{name: one["rank"] for name, one in tokens.items()} for tokens in maps]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_token_has_its_rank_among_all(tokenizer: Tokenizer, count: int) -> None:
    others: list[dict[str, int | None]] = [{"5": 1, "6": 2}, {"5": 1, "6": 2}, {"5": 1, "6": 1}]
    told = ranks_of(tokenizer, (1, 57, 1), count)
    for own, ranks, likeliest in zip(({"5": 1}, {"9": 57}, {"6": 1}), told, others, strict=True):
        assert ranks == {**own, **dict(list(likeliest.items())[:count])}
        assert next(iter(ranks)) == next(iter(own))


def test_a_log_without_ranks_uses_those_of_the_likeliest(tokenizer: Tokenizer) -> None:
    assert ranks_of(tokenizer, None, 2) == [{"5": 1, "6": 2}, {"9": None, "5": 1, "6": 2}, {"6": 1, "5": 1}]
