"""The OpenAPI document describes what the gateway does, because it is built from the same models."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from orcastream.demo import MODEL_DIR
from orcastream.gateway.app import create_app
from orcastream.gateway.openai.document import document
from orcastream.gateway.openai.examples import EXAMPLES
from orcastream.gateway.service import Gateway
from tests.gateway.conftest import MODEL, TEXT, Stage, eventually
from tests.gateway.scripted_worker import Answer

BODIES = document()["components"]["schemas"]


async def test_the_document_lists_all_routes(stage: Stage) -> None:
    app = create_app(Gateway(stage.settings(metrics=False, console=False)))
    routes: list[Any] = app.routes
    served = {
        (route.path.replace(":path", ""), method.lower())
        for route in routes
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


@pytest.mark.parametrize(
    ("more", "accepted"),
    [
        ({"input": [{"type": None, "role": "user", "content": "x"}]}, True),
        ({"text": {"format": {"type": "text", "name": None, "schema": None}}}, True),
        ({"text": {"format": {"type": "text", "other": None}}}, False),
        ({"stream": True, "stream_options": {"include_obfuscation": None}}, True),
        ({"background_options": None}, True),
        ({"background_options": {}}, True),
        ({"background_options": {"completion_window": "soonest"}}, True),
        ({"background_options": {"completion_window": "2h"}}, False),
        ({"background_options": {"continuation_id": "c"}}, False),
        ({"tools": [{"type": "function", "name": "f", "async": False, "defer_loading": False}]}, True),
        ({"tools": [{"type": "function", "name": "f", "allowed_callers": ["direct"], "output_schema": None}]}, True),
        ({"tools": [{"type": "function", "name": "f", "cache_control": {"type": "ephemeral"}}]}, True),
        ({"tools": [{"type": "function", "name": "f", "defer_loading": True}]}, False),
        ({"tools": [{"type": "function", "name": "f", "allowed_callers": ["programmatic"]}]}, False),
        ({"tools": [{"type": "function", "name": "f", "cache_control": 1}]}, False),
    ],
)
async def test_an_accepted_body_of_a_response_fits_the_document(
    stage: Stage, more: dict[str, Any], accepted: bool
) -> None:
    await stage.worker()
    body = {"model": MODEL, "input": "x", **more}
    response = await (await stage.gateway(model=str(MODEL_DIR))).http().post("/v1/responses", json=body)
    assert (response.status_code == 200) is accepted, response.text
    assert jsonschema.Draft202012Validator(BODIES["ResponseRequest"]).is_valid(body) is accepted


async def test_a_call_that_is_accepted_without_its_type_fits_the_document(stage: Stage) -> None:
    call = {"id": "c", "function": {"name": "add", "arguments": "{}"}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    jsonschema.validate(messages, BODIES["ChatRequest"]["properties"]["messages"])
    response = await (await stage.gateway(model=str(MODEL_DIR))).http().post("/tokenize", json={"messages": messages})
    assert response.status_code == 200, response.text


async def test_the_answers_fit_the_document(stage: Stage) -> None:
    """Each answer in JSON has a schema, and an actual answer has the fields of the schema and no others."""
    ids = stage.tokenizer.encode(TEXT)
    await stage.worker(Answer([ids], logprobs=True))
    http = (await stage.gateway(model=str(MODEL_DIR))).http()
    left = {
        (method, path): answer["$ref"]
        for path, operations in document()["paths"].items()
        for method, operation in operations.items()
        if (answer := operation["responses"]["200"]["content"].get("application/json", {}).get("schema"))
    }

    async def ask(method: str, path: str, at: str = "", **options: Any) -> Any:
        answer = await http.request(method, at or path, **options)
        assert answer.status_code == 200, answer.text
        schema = {"$ref": left.pop((method, path)), "components": _closed(document()["components"])}
        jsonschema.validate(answer.json(), schema)
        return answer.json()

    said = {"messages": [{"role": "user", "content": "x"}]}
    told = {"model": MODEL, "logprobs": 1}
    await ask("post", "/v1/completions", json={**told, "prompt": "x", "prompt_logprobs": 1})
    chat = await ask("post", "/v1/chat/completions", json={**told, **said, "logprobs": True, "top_logprobs": 1})
    made = await ask("post", "/v1/responses", json={"model": MODEL, "input": "x"})
    responses, made_at = "/v1/responses/{request_id}", f"/v1/responses/{made['id']}"
    await ask("get", responses, made_at)
    await ask("get", f"{responses}/input_items", f"{made_at}/input_items")
    await ask("post", f"{responses}/cancel", f"{made_at}/cancel")
    await ask("delete", responses, made_at)
    await ask("delete", "/v1/requests/{request_id}", f"/v1/requests/{chat['id']}")
    await ask("get", "/v1/models")
    await ask("get", "/v1/models/{name}", f"/v1/models/{MODEL}")
    await ask("post", "/tokenize", json={"prompt": "x", "return_token_strs": True})
    await ask("post", "/detokenize", json={"tokens": ids})
    form: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": b"{"}}
    file_id = (await ask("post", "/v1/files", **form))["id"]
    await ask("get", "/v1/files")
    await ask("get", "/v1/files/{file_id}", f"/v1/files/{file_id}")
    asked = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch_at = f"/v1/batches/{(await ask('post', '/v1/batches', json=asked))['id']}"

    async def has_failed() -> bool:
        return bool((await http.get(batch_at)).json()["status"] == "failed")

    await eventually(has_failed)
    await ask("get", "/v1/batches/{batch_id}", batch_at)
    await ask("get", "/v1/batches")
    await ask("delete", "/v1/files/{file_id}", f"/v1/files/{file_id}")
    for path in ("/health", "/health/live", "/health/ready"):
        await ask("get", path)
    assert left.keys() == {("post", "/v1/batches/{batch_id}/cancel")}, "the same object as the others'"


def test_the_document_can_be_read_by_generators_of_clients() -> None:
    """openapi-python-client leaves out an operation whose schemas have arrays in `enum`, or arrays without `items`, and
    writes invalid Python for flags without a type.
    """
    schemas = list(_within(document()["components"]["schemas"]))
    assert len(schemas) > 1000
    for schema in schemas:
        assert schema.get("type") != "array" or "items" in schema, schema
        values = schema.get("enum", []) if isinstance(schema.get("enum", []), list) else []
        assert not any(isinstance(value, list | dict) for value in (*values, schema.get("const"))), schema
        assert "type" in schema or not any(isinstance(value, int) for value in (*values, schema.get("const"))), schema


def _within(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _within(inner)


def _closed(schema: Any) -> Any:
    """Return a schema whose objects allow no more fields than they name."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(each) for name, each in schema.items()}
    return {"additionalProperties": False, **closed} if "properties" in schema and "type" in schema else closed
