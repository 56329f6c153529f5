"""/openapi.json: the API for machines, generated from the models that validate it."""

from functools import cache
from typing import Any, Final

from orcastream.gateway.batches.batch_request import BatchRequest
from orcastream.gateway.batches.form import FILES_PATH
from orcastream.gateway.batches.upload import upload_schema
from orcastream.gateway.openai.answer_schemas import answer_schemas
from orcastream.gateway.openai.constraints import constraint_schemas
from orcastream.gateway.openai.endpoint import GenerationEndpoint, Json
from orcastream.gateway.openai.endpoints import CHAT, ENDPOINTS, OF_CHOICES
from orcastream.gateway.openai.examples import EXAMPLES
from orcastream.gateway.openai.request import PAYLOAD_NAMES, TOKEN_ID
from orcastream.gateway.openai.responses.options import INCLUDED
from orcastream.gateway.openai.tokenizing import DetokenizeRequest, TokenizeRequest
from orcastream.gateway.openai.unimplemented import NEUTRAL, neutral_schemas
from orcastream.schemas.limits import ID_PATTERN, MAX_LOGIT_BIAS, MAX_LOGIT_BIASES, MAX_STOP_LENGTH, MAX_STOP_STRINGS
from orcastream.schemas.request import RequestParameters
from orcastream.telemetry.version import own_version

_ERRORS: Final = {
    400: "The request breaks a rule: `param` names the parameter; the message gives its value and what is allowed.",
    401: "The API key is missing or wrong.",
    403: "The API key does not allow this.",
    404: "No such model, or this tenant has no such request, file or batch.",
    409: "The id is in use, the request was cancelled, or its reply has changed; the batch has ended or is unreadable.",
    410: "The request has ended, and its reply is no longer kept.",
    413: "The body is too large.",
    422: "No answer can follow the schema, the expression or the grammar exactly: `param` says where the error is.",
    429: "The maximum number of requests is waiting or running: Retry-After says when to retry.",
    500: "The request ended with an error of the service.",
    503: "Redis or all workers are unavailable, or the gateway is stopping: Retry-After says when to retry.",
    504: "The request's deadline has passed.",
}
_REQUEST_ID: Final = {
    "name": "request_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": f"^{ID_PATTERN.pattern}$"},
}
_ABOUT: Final = (
    "OpenAI's API on a message queue, with extensions. Null means a parameter's default. A parameter that would "
    "change the answer and is not implemented is refused by name; one that cannot change it is accepted."
)


@cache
def document() -> Json:
    """Return the OpenAPI document, version 3.1."""
    bodies = {endpoint.body_name: _body(endpoint) for endpoint in ENDPOINTS}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Orcastream", "version": own_version(), "description": _ABOUT},
        "paths": {
            **{endpoint.path: {"post": _generate(endpoint)} for endpoint in ENDPOINTS},
            "/v1/responses/{request_id}": {
                "get": _retrieve(),
                "delete": _of_response("Cancel and delete a response.", "DeletedResponse"),
            },
            "/v1/responses/{request_id}/cancel": {"post": _of_response("Cancel a response.", "ResponseObject")},
            "/v1/responses/{request_id}/input_items": {"get": _input_items()},
            "/v1/models": {"get": _operation("The served models.", (401,), "ModelList")},
            "/v1/models/{name}": {
                "get": _operation("One model.", (401, 404), "ModelObject", parameters=[_path_parameter("name")]),
            },
            "/v1/requests/{request_id}": {
                "delete": _operation(
                    "Cancel a request.", (400, 401, 404, 503), "CancelledRequest", parameters=[_REQUEST_ID]
                )
            },
            "/v1/requests/{request_id}/events": {"get": _resume()},
            "/tokenize": {
                "post": _posts(
                    "The token ids of a prompt, as in a request with the same prompt.", "TokenizeRequest", "Tokens"
                )
            },
            "/detokenize": {"post": _posts("The text of token ids.", "DetokenizeRequest", "DetokenizedText")},
            **_files_and_batches(),
            "/health": {
                "get": _operation("Same as /health/ready, under the name that other servers use.", (503,), "Ready")
            },
            "/health/live": {"get": _operation("The process is alive.", (), "Live")},
            "/health/ready": {"get": _operation("Redis answers, and a model is served.", (503,), "Ready")},
            "/openapi.json": {"get": _operation("This document.", ())},
            "/docs": {"get": _operation("This document for people.", (), kind="text/html")},
        },
        "components": {
            "schemas": {"Error": _error(), **bodies, **_other_bodies(), **answer_schemas()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _generate(endpoint: GenerationEndpoint) -> Json:
    body = _body_of(endpoint.body_name)
    return _operation(endpoint.summary, (*_ERRORS,), endpoint.answer_name, requestBody=body, streams=True)


def _posts(summary: str, body_name: str, answer: str) -> Json:
    return _operation(summary, (400, 401, 404, 413, 503), answer, requestBody=_body_of(body_name))


def _body_of(name: str, kind: str = "application/json") -> Json:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"required": True, "content": {kind: {"schema": schema, "examples": EXAMPLES[name]}}}


def _files_and_batches() -> Json:
    file_id, batch_id, after = (
        _path_parameter("file_id"),
        _path_parameter("batch_id"),
        _query("after", {"type": "string"}),
    )
    purpose, order = _query("purpose", {"enum": ["batch", "batch_output"]}), _query("order", {"enum": ["asc", "desc"]})
    found = (400, 401, 404, 503)
    readable = (*found, 409)
    upload = _body_of("UploadRequest", "multipart/form-data")
    read = _operation("The bytes of a file.", readable, kind="application/octet-stream", parameters=[file_id])
    cancel = _operation(
        "Cancel a batch: no more of its requests are answered.", readable, "BatchObject", parameters=[batch_id]
    )
    make = _operation(
        "Create a batch from a file of requests.",
        (*readable, 403, 413, 429),
        "BatchObject",
        requestBody=_body_of("BatchRequest"),
    )
    return {
        FILES_PATH: {
            "post": _operation(
                "Upload the input of a batch.", (400, 401, 413, 429, 503), "FileObject", requestBody=upload
            ),
            "get": _operation(
                "The files, the newest first.",
                (400, 401, 503),
                "FilePage",
                parameters=[after, _limit(10_000), order, purpose],
            ),
        },
        f"{FILES_PATH}/{{file_id}}": {
            "get": _operation("One file.", readable, "FileObject", parameters=[file_id]),
            "delete": _operation("Delete a file.", found, "DeletedFile", parameters=[file_id]),
        },
        f"{FILES_PATH}/{{file_id}}/content": {"get": read},
        "/v1/batches": {
            "post": make,
            "get": _operation(
                "The batches, the newest first.", (400, 401, 503), "BatchPage", parameters=[after, _limit(100)]
            ),
        },
        "/v1/batches/{batch_id}": {"get": _operation("One batch.", readable, "BatchObject", parameters=[batch_id])},
        "/v1/batches/{batch_id}/cancel": {"post": cancel},
    }


def _limit(most: int) -> Json:
    return {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": most}}


def _other_bodies() -> Json:
    """Return the bodies of endpoints that do not generate."""
    bodies = {kind.__name__: kind.model_json_schema() for kind in (TokenizeRequest, DetokenizeRequest)}
    bodies["TokenizeRequest"]["properties"]["messages"] = _or_null(CHAT.prompt_schema())
    bodies["BatchRequest"] = BatchRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    bodies |= bodies["BatchRequest"].pop("$defs")
    bodies["BatchRequest"]["properties"]["endpoint"]["enum"] = [endpoint.path for endpoint in OF_CHOICES]
    bodies["UploadRequest"] = upload_schema()
    return bodies


def _resume() -> Json:
    parameters = [
        _REQUEST_ID,
        {"name": "include_usage", "in": "query", "schema": {"enum": ["true", "false"]}},
        {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}},
    ]
    made = _operation("The reply after Last-Event-ID.", (400, 401, 404, 409, 503), parameters=parameters)
    made["responses"]["200"]["content"] = {"text/event-stream": {}}
    return made


def _of_response(summary: str, answer: str, *parameters: Json) -> Json:
    return _operation(summary, (400, 401, 404, 409, 503), answer, parameters=[_REQUEST_ID, *parameters])


def _retrieve() -> Json:
    made = _of_response(
        "A response as it is now; or its events after a number.",
        "ResponseObject",
        _query("stream", {"enum": ["true", "false"]}),
        _query("starting_after", {"type": "integer", "minimum": 0}),
        _query("include[]", {"enum": list(INCLUDED)}),
        _query("include_obfuscation", {"enum": ["true", "false"]}),
    )
    made["responses"]["200"]["content"]["text/event-stream"] = {}
    return made


def _input_items() -> Json:
    return _of_response(
        "The conversation up to a response.",
        "InputItemPage",
        _query("after", {"type": "string"}),
        _query("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
        _query("order", {"enum": ["asc", "desc"], "default": "desc"}),
        _query("include[]", {"enum": list(INCLUDED)}),
    )


def _query(name: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "schema": schema}


def _operation(
    summary: str,
    errors: tuple[int, ...],
    answer: str | None = None,
    *,
    streams: bool = False,
    kind: str = "application/json",
    **more: Any,
) -> Json:
    """Return an operation; `answer`: the schema of its answer."""
    content: Json = {kind: {} if answer is None else {"schema": {"$ref": f"#/components/schemas/{answer}"}}}
    if streams:
        content["text/event-stream"] = {}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses: Json = {str(status): {"description": _ERRORS[status], "content": error} for status in errors}
    return {"summary": summary, **more, "responses": {"200": {"description": "Done.", "content": content}, **responses}}


def _path_parameter(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _body(endpoint: GenerationEndpoint) -> Json:
    parameters, options = RequestParameters.model_json_schema(), endpoint.options.model_json_schema()
    names = {name: parameters["properties"][name] for name in sorted(PAYLOAD_NAMES - endpoint.lacks)}
    if "echo" not in endpoint.own_names and "max_tokens" in names:
        names["max_tokens"] = {**names["max_tokens"], "exclusiveMinimum": 0}
    names |= {name: schema for name, schema in options["properties"].items() if name != "stream_options"}
    (names["stream_options"],) = options["$defs"].values()
    text = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
    names["logit_bias"] = {
        "type": "object",
        "maxProperties": MAX_LOGIT_BIASES,
        "propertyNames": {"pattern": TOKEN_ID.pattern},
        "additionalProperties": {"type": "number", "minimum": -MAX_LOGIT_BIAS, "maximum": MAX_LOGIT_BIAS},
        "description": "Token id → value added to its logit.",
    }
    names["stop"] = {"anyOf": [text, {"type": "array", "items": text, "maxItems": MAX_STOP_STRINGS}]}
    names |= {name: schema for name, schema in constraint_schemas().items() if name not in endpoint.lacks}
    names |= endpoint.own_schemas(names)
    names = {name: schema if name == "model" else _or_null(schema) for name, schema in names.items()}
    not_implemented = neutral_schemas({**NEUTRAL, **endpoint.neutral})
    names |= {name: schema for name, schema in not_implemented.items() if name not in names}
    return {
        "type": "object",
        "properties": {endpoint.prompt_name: endpoint.prompt_schema(), **names},
        "required": ["model", endpoint.prompt_name],
        "additionalProperties": False,
    }


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _error() -> Json:
    nullable = {"type": ["string", "null"]}
    fields = {"message": {"type": "string"}, "type": {"type": "string"}, "param": nullable, "code": nullable}
    inner = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "object", "properties": {"error": inner}, "required": ["error"]}
