"""The OpenAPI document says what the gateway does, for it is made of the same models."""

import json
from typing import Any

import jsonschema
import pytest

from gateway.app import create_app
from gateway.openapi import document
from gateway.service import Gateway
from tests.gateway.conftest import MODEL, TEXT, Stage

BODIES = document()["components"]["schemas"]


async def test_it_lists_the_routes_that_there_are(stage: Stage) -> None:
    app = create_app(Gateway(stage.settings(metrics=False)))
    served = {
        (route.path.replace(":path", ""), method.lower())
        for route in app.routes
        for method in getattr(route, "methods", ())
        if method != "HEAD"
    }
    listed = {(path, method) for path, operations in document()["paths"].items() for method in operations}
    assert served == listed


async def test_it_is_served_and_its_errors_are_those_that_come(stage: Stage) -> None:
    await stage.worker()
    http = (await stage.gateway()).http()
    assert (await http.get("/openapi.json")).json() == json.loads(json.dumps(document()))
    refused = await http.post("/v1/completions", json={"model": MODEL})
    assert refused.status_code == 400
    jsonschema.validate(refused.json(), BODIES["Error"])


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"max_tokens": None, "stop": "x", "tools": [], "logit_bias": {}, "user": "u", "priority": "low"},
        {"stream": False, "stop": ["a", "b"], "n": 2, "seed": 5, "top_k": 3, "timeout": 5.5},
        {"max_tokens": 0},
        {"n": 17},
        {"tools": [1]},
        {"nonsense": 1},
        {"stop": [""]},
        {"stream": "yes"},
        {"prompt": []},
        {"prompt": [1, "x"]},
    ],
)
async def test_a_body_fits_the_document_where_it_is_taken(stage: Stage, more: dict[str, Any]) -> None:
    await stage.worker(TEXT)
    body = {"model": MODEL, "prompt": "x", **more}
    response = await (await stage.gateway()).http().post("/v1/completions", json=body)
    fits = jsonschema.Draft202012Validator(BODIES["CompletionRequest"]).is_valid(body)
    assert (response.status_code == 200) is fits, response.text
