"""The size limit of the answer to one line: a larger answer becomes an error line, and its computation stops."""

import json
from typing import Any

import pytest

from orcastream.gateway.batches import line_answers
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest
from tests.gateway.batches.conftest import CHAT, begin, ended, line, results
from tests.gateway.conftest import MODEL, TEXT, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.redis_server import RedisServer

COMPLETIONS = "/v1/completions"
PROMPT_LOGPROBS = {"prompt": ["a", "b"], "n": 2, "echo": True, "logprobs": 1, "prompt_logprobs": 2}


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (CHAT, {}),
        (CHAT, {"n": 2, "logprobs": True, "top_logprobs": 2}),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 2}),
        (COMPLETIONS, PROMPT_LOGPROBS),
    ],
)
async def test_the_size_of_an_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, url: str, body: dict[str, Any]
) -> None:
    ids = stage.tokenizer.encode(TEXT)
    await stage.worker(lambda request: Answer([ids] * request.payload.n, logprobs="logprobs" in body))
    client = (await stage.gateway()).openai()

    async def answered() -> tuple[bool, dict[str, Any]]:
        batch = await ended(client, await begin(client, line("a", url, **body), endpoint=url))
        file_id = batch.output_file_id or batch.error_file_id
        return batch.output_file_id is not None, (await results(client, file_id))["a"]

    is_answered, result = await answered()
    assert is_answered
    size = len(json.dumps(result["response"]["body"], ensure_ascii=False, separators=(",", ":")).encode())
    monkeypatch.setattr(line_answers, "MAX_ANSWER_BYTES", size)
    assert (await answered())[0]
    monkeypatch.setattr(line_answers, "MAX_ANSWER_BYTES", size - 1)
    is_answered, result = await answered()
    assert not is_answered
    assert (result["response"], result["error"]["code"]) == (None, "answer_too_large")
    assert f"more than {size - 1} bytes" in result["error"]["message"]


@pytest.mark.parametrize("more", [{}, {"logprobs": 2}])
async def test_an_oversized_answer_is_cancelled_while_it_arrives(
    stage: Stage, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """Its worker would never finish."""
    monkeypatch.setattr(line_answers, "MAX_ANSWER_BYTES", 5_000)
    ids, quick = stage.tokenizer.encode(TEXT), len(stage.tokenizer.encode("x"))

    def script(request: GenerationRequest) -> Answer:
        if len(request.payload.prompt) == quick:
            return Answer([ids])
        return Answer([ids * 400], group=len(ids), gate=Gate(300), logprobs=bool(more))

    worker = await stage.worker(script)
    client = (await stage.gateway()).openai()
    prompts = {"before": "x", "large": "a longer one", "after": "x"}
    lines = [line(custom_id, COMPLETIONS, prompt=prompt, **more) for custom_id, prompt in prompts.items()]
    batch = await ended(client, await begin(client, *lines, endpoint=COMPLETIONS))
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}
    assert set(await results(client, batch.output_file_id)) == {"before", "after"}
    [(custom_id, failed)] = (await results(client, batch.error_file_id)).items()
    assert (custom_id, failed["response"], failed["error"]["code"]) == ("large", None, "answer_too_large")
    assert "more than 5000 bytes" in failed["error"]["message"]
    assert len(worker.requests) == 3
    with redis_server.client() as redis:

        async def runs_nothing() -> bool:
            return not redis.xlen(Keys(MODEL).requests("low"))

        await eventually(runs_nothing)
