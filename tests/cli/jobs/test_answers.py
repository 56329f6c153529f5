"""A line is retried if the answer to its request is unavailable, and fails if a retry would not help."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from orcastream.broker.jobs.job import Job, JobLine
from orcastream.broker.jobs.order import JobOrder
from orcastream.broker.link import Link
from orcastream.broker.presence import Presence
from orcastream.broker.redis_link import RedisLink
from orcastream.cli.jobs.answers import Answers
from orcastream.cli.jobs.context import Context
from orcastream.cli.jobs.question import CHAT_URL, COMPLETION_URL
from orcastream.client import AsyncClient
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.request import GenerationRequest
from orcastream.text.model_config import ModelConfig
from tests.gateway.conftest import MODEL, TEXT, Stage, eventually, model_folder, redis_binary, stage, tokenizer
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.tiny_model import MAX_MODEL_LEN

__all__ = ["model_folder", "redis_binary", "stage", "tokenizer"]

LINE = JobLine(1, json.dumps({"custom_id": "a", "prompt": "x"}).encode())
Ask = Callable[..., "asyncio.Task[tuple[dict[str, Any], bool]]"]


@pytest.fixture
async def answers_of(stage: Stage, model_folder: str) -> AsyncIterator[Callable[..., Answers]]:
    """A factory of objects that answer the lines of one job."""
    redis = RedisLink(stage.url, "job")
    client = AsyncClient(stage.url, MODEL, tokenizer=stage.tokenizer)
    job = Job(redis, stage.keys, "job", patience_s=10)
    context = Context(redis, stage.keys, ModelConfig.load(model_folder).limits, patience_s=10)

    def make(timeout_s: float = 60, window_s: float = 60, max_tokens: int | None = None) -> Answers:
        now_ms = int(time.time() * 1000)
        order = JobOrder("digest", now_ms, now_ms + int(window_s * 1000), now_ms + 60_000)
        return Answers(
            client,
            job,
            order,
            model=MODEL,
            tokenizer=stage.tokenizer,
            context=context,
            max_tokens=max_tokens,
            timeout_s=timeout_s,
            now_ms=lambda: redis.now_ms,
        )

    yield make
    await client.aclose()
    await redis.close()


@pytest.fixture
def ask(answers_of: Callable[..., Answers]) -> Ask:
    """Starts to answer a line: its result, and whether that is a failure."""

    async def answer(answers: Answers, line: JobLine) -> tuple[dict[str, Any], bool]:
        body, failed = await answers.answer(line)
        return json.loads(body), failed

    def begin(line: JobLine = LINE, **terms: Any) -> "asyncio.Task[tuple[dict[str, Any], bool]]":
        return asyncio.create_task(answer(answers_of(**terms), line))

    return begin


def text(result: dict[str, Any]) -> str:
    found: str = result["response"]["body"]["choices"][0]["text"]
    return found


async def test_an_answer(stage: Stage, ask: Ask) -> None:
    worker = await stage.worker()
    result, failed = await ask()
    assert (text(result), failed, result["id"], result["response"]["request_id"]) == (TEXT, False, "job.1", "job.1")
    [request] = worker.requests
    assert (request.priority_class, request.payload.max_tokens) == ("low", 16)


async def test_an_unstated_length_fits_the_context(stage: Stage, ask: Ask) -> None:
    worker = await stage.worker()
    for context in (MAX_MODEL_LEN, 100):  # as the model's files state, and as a worker reports
        for number, (asked, max_tokens) in enumerate(
            (
                ({"prompt": [5] * (context - 6)}, None),
                ({"prompt": [5] * (context - 6), "min_tokens": 5}, None),
                ({"messages": [{"role": "user", "content": "x" * 30}]}, 1000),
                ({"prompt": "x"}, 1000),
            )
        ):
            line = JobLine(context * 10 + number, json.dumps(asked).encode())
            result, failed = await ask(line=line, max_tokens=max_tokens)
            assert not failed, result
            payload = worker.requests[-1].payload
            assert len(payload.prompt) + (payload.max_tokens or 0) == context
        link = await Link.open(stage.url)
        await Presence(link, stage.keys, worker.name).beat({"max_model_len": 100}, ttl_ms=600_000)
        await link.close()
        await asyncio.sleep(1.1)  # workers' limits are cached for this long
    asked = {"prompt": [5] * 94, "min_tokens": 7}
    result, failed = await ask(line=JobLine(9, json.dumps(asked).encode()))
    assert failed
    assert result["error"]["message"].startswith("min_tokens: got 7, allowed: at most 6 after a prompt of 94 tokens")
    result, failed = await ask(line=JobLine(10, json.dumps({**asked, "min_tokens": 0, "max_tokens": 16}).encode()))
    assert (worker.requests[-1].id, worker.requests[-1].payload.max_tokens) == ("job.10", 16)


async def test_an_expired_reply_is_requested_again(stage: Stage, ask: Ask) -> None:
    worker = await stage.worker()
    await ask()
    link = await Link.open(stage.url)
    await link.call("DEL", stage.keys.reply("job.1"))
    await link.close()
    result, failed = await ask()
    assert (text(result), failed, result["id"], result["response"]["request_id"]) == (TEXT, False, "job.1", "job.1.1")
    assert [request.id for request in worker.requests] == ["job.1", "job.1.1"]


async def test_a_request_not_served_in_time_is_posted_again(
    stage: Stage, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker or gateway exists to end the request."""
    monkeypatch.setattr("orcastream.client.redis_transport._LATE_S", 0.1)
    asking = ask(timeout_s=0.3)
    link = await Link.open(stage.url)

    async def posted_again() -> bool:
        return bool(await link.call("EXISTS", stage.keys.seen("job.1.1")))

    await eventually(posted_again)
    assert not asking.done()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await link.close()


async def test_a_process_that_continues_withdraws_the_running_attempt(
    stage: Stage, ask: Ask, answers_of: Callable[..., Answers]
) -> None:
    """The first two have ended; only the departed process knew of the third."""

    def script(request: GenerationRequest) -> Answer:
        if request.id == "job.1.2":
            return Answer([[5, 6]], gate=Gate(1))
        return Answer([[5]], error=ErrorCode.EXPIRED)

    worker = await stage.worker(script)
    asking = ask()

    async def runs() -> bool:
        return len(worker.requests) == 3

    await eventually(runs)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await answers_of().withdraw(LINE)
    link = await Link.open(stage.url)

    async def ended() -> bool:
        return not await link.call("XLEN", stage.keys.requests("low"))

    await eventually(ended)
    await link.close()


async def test_a_line_fails_once_the_time_of_its_job_is_over(
    stage: Stage, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orcastream.client.redis_transport._LATE_S", 0.1)
    result, failed = await ask(timeout_s=0.2, window_s=0.3)
    assert (failed, result["response"], result["error"]["code"], result["custom_id"]) == (True, None, "expired", "a")


async def test_an_error_that_a_retry_would_not_fix_is_the_result(stage: Stage, ask: Ask) -> None:
    worker = await stage.worker(Answer([[5]], error=ErrorCode.ENGINE_ERROR))
    result, failed = await ask()
    assert (failed, result["error"]) == (True, {"code": "engine_error", "message": "the script says engine_error"})
    assert len(worker.requests) == 1


async def test_an_unforeseen_error_is_the_result(stage: Stage, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its line only: the job continues."""

    def fail(*_: object) -> bytes:
        raise KeyError("unforeseen")

    await stage.worker()
    monkeypatch.setattr("orcastream.cli.jobs.answers.answered", fail)
    result, failed = await ask()
    assert (failed, result["custom_id"], result["error"]["code"]) == (True, "a", "internal_error")
    assert "KeyError" in result["error"]["message"]


@pytest.mark.parametrize("url", [COMPLETION_URL, CHAT_URL])
async def test_log_probabilities_equal_those_of_a_gateway(stage: Stage, ask: Ask, url: str) -> None:
    """Including those of a text cut by a stop string, of bytes that form no character, and of the prompt."""
    tokens = stage.tokenizer.encode("Wölfe: 世界. End")
    cut = Answer([tokens, tokens[:2]], text_length=len("Wölfe: 世"), logprobs=True)
    await stage.worker(cut)
    http = (await stage.gateway()).http()
    if url == CHAT_URL:
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Über"}], "n": 2}
        own, over_http = {"logprobs": 2}, {"logprobs": True, "top_logprobs": 2}
    else:
        asked = {"prompt": "Über 3 世", "n": 2}
        own = over_http = {"logprobs": 2, "prompt_logprobs": 1}
    told = (await http.post(url, json={"model": MODEL, **asked, **over_http})).json()
    result, failed = await ask(line=JobLine(1, json.dumps({**asked, **own}).encode()))
    assert not failed
    choices = result["response"]["body"]["choices"]
    names = ("logprobs", "prompt_logprobs")
    assert [{name: choice.get(name) for name in names} for choice in choices] == [
        {name: choice.get(name) for name in names} for choice in told["choices"]
    ]
    assert all(choice["logprobs"] for choice in choices)
    assert ("prompt_logprobs" in choices[0]) == (url == COMPLETION_URL)
