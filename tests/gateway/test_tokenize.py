"""/tokenize and /detokenize agree with the tokens of requests."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.gateway.conftest import MODEL, Stage
from tests.gateway.tiny_model import MAX_MODEL_LEN, write_framing_model

MESSAGES = [{"role": "user", "content": "hi", "name": "bob"}]


@pytest.mark.parametrize(
    ("path", "prompt"),
    [("/v1/completions", {"prompt": "Zwölf 世界"}), ("/v1/chat/completions", {"messages": MESSAGES})],
)
async def test_the_ids_equal_those_of_a_request(stage: Stage, path: str, prompt: dict[str, Any]) -> None:
    worker = await stage.worker()
    http = (await stage.gateway()).http()
    assert (await http.post(path, json={"model": MODEL, **prompt})).status_code == 200
    told = (await http.post("/tokenize", json={"model": MODEL, **prompt, "return_token_strs": True})).json()
    ids = list(worker.requests[0].payload.prompt)
    assert (told["tokens"], told["count"], told["max_model_len"]) == (ids, len(ids), MAX_MODEL_LEN)
    assert len(told["token_strs"]) == len(ids)
    back = (await http.post("/detokenize", json={"tokens": ids})).json()
    assert back["prompt"] == stage.tokenizer.decode(ids)


@pytest.mark.parametrize("prompt", [{"prompt": "Zwölf 世界"}, {"messages": [{"role": "user", "content": "hi"}]}])
async def test_special_tokens_around_a_prompt(stage: Stage, tmp_path: Path, prompt: dict[str, Any]) -> None:
    hf = AutoTokenizer.from_pretrained(write_framing_model(tmp_path))
    http = (await stage.gateway(model=str(tmp_path))).http()

    async def ids(**asked: Any) -> list[int]:
        return (await http.post("/tokenize", json={**prompt, **asked})).json()["tokens"]

    text = prompt.get("prompt") or hf.apply_chat_template(
        prompt["messages"], tokenize=False, add_generation_prompt=True
    )
    without, around = hf.encode(text, add_special_tokens=False), hf.encode(text)
    assert around == [1, *without, 2]
    assert await ids(add_special_tokens=True) == around
    assert await ids(add_special_tokens=False) == without
    assert await ids() == (around if "prompt" in prompt else without)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": "x" * 100_000}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * 100_000}]}, "messages"),
        ("/tokenize", {"messages": [{"role": "nobody", "content": "x"}]}, "messages.0.role"),
        ("/tokenize", {"prompt": "x", "nonsense": 1}, "nonsense"),
        ("/detokenize", {"tokens": []}, "tokens"),
        ("/detokenize", {"tokens": [5, -1]}, "tokens.1"),
        ("/detokenize", {"tokens": [5, 100_000]}, "tokens.1"),
        ("/detokenize", {"tokens": [5] * 1000}, "tokens"),
    ],
)
async def test_invalid_parameters_are_named(stage: Stage, path: str, body: dict[str, Any], param: str) -> None:
    refused = await (await stage.gateway()).http().post(path, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_keys_and_models_apply_here_too(stage: Stage) -> None:
    http = (await stage.gateway(api_keys={"sk-a": "alpha"})).http()
    assert (await http.post("/tokenize", json={"prompt": "x"})).status_code == 401
    headers = {"Authorization": "Bearer sk-a"}
    assert (await http.post("/tokenize", json={"prompt": "x"}, headers=headers)).status_code == 200
    missing = await http.post("/detokenize", json={"model": "gpt-9", "tokens": [5]}, headers=headers)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
