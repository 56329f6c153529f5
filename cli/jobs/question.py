"""One line of a bulk job: a request in OpenAI's batch format or in the plain one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from orcastream.client.request import Prompt, checked_parameters
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.json_text import finite, no_constant
from orcastream.schemas.limits import MAX_PAYLOAD_BYTES
from orcastream.schemas.request import parse_payload
from orcastream.schemas.utf8_text import check_text, check_value

CHAT_URL: Final = "/v1/chat/completions"
COMPLETION_URL: Final = "/v1/completions"
_PROMPTS: Final = {CHAT_URL: "messages", COMPLETION_URL: "prompt"}
_COMPLETION_TOKENS: Final = 16
"""OpenAI's default length of a completion."""
_MAX_CUSTOM_ID_LENGTH: Final = 512


@dataclass(frozen=True, slots=True)
class Question:
    """The request of a line, checked as far as possible without a tokenizer."""

    custom_id: str
    url: str
    prompt: Prompt
    parameters: Mapping[str, Any]
    longest: int | None
    """Default for the answer's maximum tokens, as far as the context has room; None: all the room."""

    @classmethod
    def read(cls, line: bytes, number: int, *, model: str, max_tokens: int | None) -> "Question":
        """Read line `number` of a job; `max_tokens` is the default. Raises InvalidRequest naming what is wrong."""
        fields = _object(line)
        custom_id = fields.pop("custom_id", f"request-{number}")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MAX_CUSTOM_ID_LENGTH:
            raise InvalidRequest("custom_id", custom_id, f"1 to {_MAX_CUSTOM_ID_LENGTH} characters")
        check_text("custom_id", custom_id)
        url = COMPLETION_URL if "prompt" in fields else CHAT_URL
        if "body" in fields:
            url, fields = _opened(fields)
        prompt = _prompt(fields, url)
        parameters = _parameters(fields, model)
        longest = max_tokens or (_COMPLETION_TOKENS if url == COMPLETION_URL else None)
        parse_payload({**checked_parameters(parameters), "prompt": [0]})
        if "max_tokens" in parameters:
            longest = None
        elif longest is not None:
            longest = max(longest, parameters.get("min_tokens", 0))
        return cls(custom_id, url, cast(Prompt, prompt), parameters, longest)


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_PAYLOAD_BYTES:
        raise InvalidRequest("line", f"{len(line)} bytes", f"at most {MAX_PAYLOAD_BYTES} bytes")
    try:
        fields = json.loads(line, parse_constant=no_constant, parse_float=finite)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InvalidRequest("line", line, "a JSON object")
    return fields


def _opened(envelope: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return URL and body of a line in OpenAI's batch format."""
    body = envelope.pop("body")
    if not isinstance(body, dict):
        raise InvalidRequest("body", body, "a JSON object")
    if (method := envelope.pop("method", "POST")) != "POST":
        raise InvalidRequest("method", method, "POST")
    url = envelope.pop("url", COMPLETION_URL if "prompt" in body else CHAT_URL)
    if not isinstance(url, str) or url not in _PROMPTS:
        raise InvalidRequest("url", url, " or ".join(_PROMPTS))
    for name, value in envelope.items():
        raise InvalidRequest(name, value, "only custom_id, method, url and body")
    return url, body


def _prompt(fields: dict[str, Any], url: str) -> object:
    name = _PROMPTS[url]
    prompt = fields.pop(name, None)
    kinds = (list,) if url == CHAT_URL else (str, list)
    if not isinstance(prompt, kinds) or not prompt:
        raise InvalidRequest(name, prompt, "messages" if url == CHAT_URL else "text or token ids")
    if isinstance(prompt, list) and not all(map(_is_message if url == CHAT_URL else _is_token, prompt)):
        raise InvalidRequest(name, prompt, "objects with role and content" if url == CHAT_URL else "token ids")
    if isinstance(prompt, str) or url == CHAT_URL:
        check_value(name, prompt)
    return prompt


def _is_message(part: object) -> bool:
    return isinstance(part, dict) and all(isinstance(part.get(name), str) for name in ("role", "content"))


def _is_token(part: object) -> bool:
    return type(part) is int


def _parameters(fields: dict[str, Any], model: str) -> dict[str, Any]:
    if (named := fields.pop("model", model)) != model:
        raise InvalidRequest("model", named, f"{model}, the served model")
    if (stream := fields.pop("stream", None)) not in (None, False):
        raise InvalidRequest("stream", stream, "false: results are not streamed")
    if "max_completion_tokens" in fields:
        fields["max_tokens"] = fields.pop("max_completion_tokens")
    return {name: value for name, value in fields.items() if value is not None}
