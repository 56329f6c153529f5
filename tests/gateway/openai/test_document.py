"""The OpenAPI document describes what the gateway does, because it is built from the same models."""

import json
from typing import Any

import jsonschema
import pytest

from orcastream.demo import MODEL_DIR
from orcastream.gateway.app import create_app
from orcastream.gateway.openai.document import document
from orcastream.gateway.openai.examples import EXAMPLES
from orcastream.gateway.service import Gateway
from tests.gateway.conftest import MODEL, TEXT, Stage

BODIES = document()["components"]["schemas"]


async def test_the_document_lists_all_routes(stage: Stage) -> None:
    app = create_app(Gateway(stage.settings(metrics=False, console=False)))
    served = {
        (route.path.replace(":path", ""), method.lower())
        for route in app.routes
        for method in getattr(route, "methods", ())
        if method != "HEAD"
    }
    listed = {(path, method) for path, operations in document()["paths"].items() for method in operations}
    assert served == listed


async def test_the_document_is_served_and_lists_the_actual_errors(stage: Stage) -> None:
    await stage.worker()
    http = (await stage.gateway()).http()
    assert (await http.get("/openapi.json")).json() == json.loads(json.dumps(document()))
    page = await http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in document()["paths"]:
        assert f"<code>{path}</code>" in page.text
    for name in BODIES["CompletionRequest"]["properties"]:
        assert name in page.text
    assert "//" not in page.text.replace("</", ""), "it loads nothing from elsewhere"
    refused = await http.post("/v1/completions", json={"model": MODEL})
    assert refused.status_code == 400
    jsonschema.validate(refused.json(), BODIES["Error"])


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/completions", "CompletionRequest"),
        ("/v1/chat/completions", "ChatRequest"),
        ("/v1/responses", "ResponseRequest"),
        ("/tokenize", "TokenizeRequest"),
        ("/detokenize", "DetokenizeRequest"),
    ],
)
async def test_the_examples_are_accepted(stage: Stage, path: str, name: str) -> None:
    await stage.worker()
    http = (await stage.gateway(model=str(MODEL_DIR))).http()
    examples = document()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["examples"]
    assert examples
    for example in examples.values():
        jsonschema.validate(example["value"], BODIES[name])
        response = await http.post(path, json={**example["value"], "model": MODEL})
        assert response.status_code == 200, response.text
        assert '"error":{' not in response.text


async def test_the_examples_of_a_batch_are_accepted(stage: Stage) -> None:
    http = (await stage.gateway()).http()
    [form] = [each["value"] for each in EXAMPLES["UploadRequest"].values()]
    jsonschema.validate(form, BODIES["UploadRequest"])
    uploaded = await http.post("/v1/files", data={"purpose": form["purpose"]}, files={"file": form["file"].encode()})
    assert uploaded.status_code == 200, uploaded.text
    [body] = [each["value"] for each in EXAMPLES["BatchRequest"].values()]
    jsonschema.validate(body, BODIES["BatchRequest"])
    made = await http.post("/v1/batches", json={**body, "input_file_id": uploaded.json()["id"]})
    assert (made.status_code, made.json()["status"]) == (200, "validating"), made.text


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"presence_penalty": 1, "logit_bias": {"5": 1}, "logprobs": 2, "metadata": {}, "service_tier": "flex"},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"5": 101}},
        {"logprobs": True},
        {"repetition_penalty": 0},
        {"prompt": ["a", [5]]},
        {"prompt": ["a", []]},
        {"priority": "urgent"},
        {"max_tokens": None, "stop": "x", "tools": [], "logit_bias": {}, "user": "u", "priority": "low"},
        {"stream": False, "stop": ["a", "b"], "n": 2, "seed": 5, "top_k": 3, "timeout": 5.5},
        {"max_tokens": 0, "echo": True},
        {"max_tokens": -1},
        {"prompt_logprobs": 2, "echo": True, "logprobs": 1},
        {"prompt_logprobs": 21},
        {"n": 17},
        {"tools": [1]},
        {"nonsense": 1},
        {"stop": [""]},
        {"stream": "yes"},
        {"prompt": []},
        {"prompt": [1, "x"]},
    ],
)
async def test_an_accepted_body_fits_the_document(stage: Stage, more: dict[str, Any]) -> None:
    await stage.worker(TEXT)
    body = {"model": MODEL, "prompt": "x", **more}
    response = await (await stage.gateway()).http().post("/v1/completions", json=body)
    fits = jsonschema.Draft202012Validator(BODIES["CompletionRequest"]).is_valid(body)
    assert (response.status_code == 200) is fits, response.text


async def test_a_call_that_is_accepted_without_its_type_fits_the_document(stage: Stage) -> None:
    call = {"id": "c", "function": {"name": "add", "arguments": "{}"}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    jsonschema.validate(messages, BODIES["ChatRequest"]["properties"]["messages"])
    response = await (await stage.gateway(model=str(MODEL_DIR))).http().post("/tokenize", json={"messages": messages})
    assert response.status_code == 200, response.text
