"""/openapi.json: the API for machines, made of the models that check it."""

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.kind import Kind
from gateway.messages import MAX_MESSAGES, ROLES
from gateway.neutral import NEUTRAL
from gateway.openai_request import PAYLOAD_NAMES, Options
from schemas.limits import ID_PATTERN, MAX_STOP_LENGTH, MAX_STOP_STRINGS, MAX_TOKEN_ID
from schemas.request import Payload
from telemetry.version import own_version

if TYPE_CHECKING:
    from gateway.service import Gateway

Json = dict[str, Any]

_ERRORS: Final = {
    400: "The request breaks a rule: `param` names the parameter, the message what it said and what is allowed.",
    401: "No API key, or a wrong one.",
    403: "The API key does not allow this.",
    404: "No such model, or no such request of this tenant.",
    409: "The id is in use, the request was cancelled, or its reply has changed.",
    410: "The request has ended, and its reply is no longer kept.",
    413: "The body is too large.",
    429: "As many requests wait or run as are admitted: Retry-After says when to come back.",
    500: "The request ended with an error of the service.",
    503: "Redis or all workers are gone, or the gateway is stopping: Retry-After says when to come back.",
    504: "The request's deadline passed.",
}
_REQUEST_ID: Final = {
    "name": "request_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": f"^{ID_PATTERN.pattern}$"},
}
_OBJECT: Final[Json] = {"type": "object"}


async def openapi(gateway: "Gateway", request: Request) -> Response:
    """GET /openapi.json."""
    return JSONResponse(document())


@cache
def document() -> Json:
    """The OpenAPI document, version 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Orcastream", "version": own_version()},
        "paths": {
            "/v1/completions": {"post": _generate("A completion of one prompt.", Kind.COMPLETION)},
            "/v1/chat/completions": {"post": _generate("The next message of a chat.", Kind.CHAT)},
            "/v1/models": {"get": _operation("The model that is served.", (401,))},
            "/v1/models/{name}": {
                "get": _operation("One model.", (401, 404), parameters=[_path_parameter("name")]),
            },
            "/v1/requests/{request_id}": {
                "delete": _operation("Cancel a request.", (400, 401, 404, 503), parameters=[_REQUEST_ID])
            },
            "/v1/requests/{request_id}/events": {"get": _resume()},
            "/health/live": {"get": _operation("The process answers.", ())},
            "/health/ready": {"get": _operation("Redis answers, and somebody serves the model.", (503,))},
            "/openapi.json": {"get": _operation("This document.", ())},
        },
        "components": {
            "schemas": {
                "Error": _error(),
                "CompletionRequest": _body(Kind.COMPLETION),
                "ChatRequest": _body(Kind.CHAT),
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _generate(summary: str, kind: Kind) -> Json:
    name = "ChatRequest" if kind is Kind.CHAT else "CompletionRequest"
    schema = {"$ref": f"#/components/schemas/{name}"}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return _operation(summary, (*_ERRORS,), requestBody=body, streams=True)


def _resume() -> Json:
    parameters = [
        _REQUEST_ID,
        {"name": "include_usage", "in": "query", "schema": {"enum": ["true", "false"]}},
        {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}},
    ]
    made = _operation("The reply, from behind Last-Event-ID on.", (400, 401, 404, 409, 503), parameters=parameters)
    made["responses"]["200"]["content"] = {"text/event-stream": {}}
    return made


def _operation(summary: str, errors: tuple[int, ...], *, streams: bool = False, **more: Any) -> Json:
    content: Json = {"application/json": {"schema": _OBJECT}}
    if streams:
        content["text/event-stream"] = {}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses: Json = {str(status): {"description": _ERRORS[status], "content": error} for status in errors}
    return {"summary": summary, **more, "responses": {"200": {"description": "Done.", "content": content}, **responses}}


def _path_parameter(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _body(kind: Kind) -> Json:
    payload, options = Payload.model_json_schema(), Options.model_json_schema()
    names = {name: payload["properties"][name] for name in sorted(PAYLOAD_NAMES)}
    names |= {name: schema for name, schema in options["properties"].items() if name != "stream_options"}
    names["stream_options"] = options["$defs"]["StreamOptions"]
    text = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
    names["stop"] = {"anyOf": [text, {"type": "array", "items": text, "maxItems": MAX_STOP_STRINGS}]}
    if kind is Kind.CHAT:
        names["max_completion_tokens"] = names["max_tokens"]
    names = {name: schema if name == "model" else _or_null(schema) for name, schema in names.items()}
    names |= {name: {"enum": [None, *values], "description": "Not implemented."} for name, values in NEUTRAL.items()}
    prompt, schema = ("messages", _messages()) if kind is Kind.CHAT else ("prompt", _prompt())
    return {
        "type": "object",
        "properties": {prompt: schema, **names},
        "required": ["model", prompt],
        "additionalProperties": False,
    }


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _prompt() -> Json:
    ids = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}}
    return {"anyOf": [{"type": "string", "minLength": 1}, ids]}


def _messages() -> Json:
    part = {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    }
    content = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": part}]}
    message = {
        "type": "object",
        "properties": {"role": {"enum": list(ROLES)}, "content": content},
        "required": ["role", "content"],
    }
    return {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": message}


def _error() -> Json:
    nullable = {"type": ["string", "null"]}
    fields = {"message": {"type": "string"}, "type": {"type": "string"}, "param": nullable, "code": nullable}
    inner = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "object", "properties": {"error": inner}, "required": ["error"]}
