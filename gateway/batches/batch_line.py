"""One line of a batch's input: a request to an endpoint, in OpenAI's form."""

import json
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from orcastream.gateway.openai.endpoint import GenerationEndpoint
from orcastream.gateway.openai.json_body import read_json_object
from orcastream.gateway.openai.options import Options
from orcastream.gateway.openai.request import ApiRequest, parse_body
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import PriorityClass
from orcastream.schemas.utf8_text import check_text

PRIORITY_CLASS: Final[PriorityClass] = "low"
"""The class of every request of a batch."""
_MAX_CUSTOM_ID_LENGTH: Final = 512
_NAMES: Final = frozenset({"custom_id", "method", "url", "body"})
_TIERS: Final = (None, "auto", "default", "flex")


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A well-formed line. Its body is checked when the line is answered, like the body of an HTTP request."""

    custom_id: str
    body: bytes

    @classmethod
    def read(cls, raw: bytes, endpoint: GenerationEndpoint, max_values: int) -> Self:
        """Parse the bytes of a line. Raises InvalidRequest naming the defect. `max_values`: see `read_json_object`."""
        fields = read_json_object(raw, max_values)
        custom_id, body = fields.get("custom_id"), fields.get("body")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MAX_CUSTOM_ID_LENGTH:
            raise InvalidRequest("custom_id", custom_id, f"1 to {_MAX_CUSTOM_ID_LENGTH} characters")
        check_text("custom_id", custom_id)
        if (method := fields.get("method")) != "POST":
            raise InvalidRequest("method", method, "POST")
        if (url := fields.get("url")) != endpoint.path:
            raise InvalidRequest("url", url, f"{endpoint.path}, the endpoint of the batch")
        if not isinstance(body, dict):
            raise InvalidRequest("body", body, "an object")
        for name in fields.keys() - _NAMES:
            raise InvalidRequest(name, fields[name], "only custom_id, method, url and body")
        return cls(custom_id, json.dumps(body, ensure_ascii=False).encode(errors="surrogatepass"))

    def parse(self, endpoint: GenerationEndpoint, max_tokens: int) -> ApiRequest:
        """Parse the request in the body.

        Raises InvalidRequest or ApiError naming what is wrong or not allowed in batches.
        """
        asked = parse_body(endpoint, self.body, max_tokens)
        _check_options(asked.options)
        parameters = asked.parameters.model_copy(update={"on_disconnect": "continue"})  # no client can disconnect
        options = asked.options.model_copy(update={"priority": PRIORITY_CLASS, "service_tier": None})
        return replace(asked, parameters=parameters, options=options)


def with_deadline(asked: ApiRequest, deadline_ms: int) -> ApiRequest:
    """Return the request with its deadline, ready to be posted."""
    return replace(asked, options=asked.options.model_copy(update={"deadline_ms": deadline_ms}))


def _check_options(options: Options) -> None:
    allowed: dict[str, tuple[tuple[Any, ...], str]] = {
        "stream": ((False,), "false: a batch returns whole results"),
        "priority": ((None, PRIORITY_CLASS), f"{PRIORITY_CLASS}, the class of a batch"),
        "service_tier": (_TIERS, "auto, default, flex: a batch waits in its own class"),
        "timeout": ((None,), "none: the completion window of the batch applies"),
        "deadline_ms": ((None,), "none: the completion window of the batch applies"),
        "request_id": ((None,), "none: the ids of a batch's requests derive from its lines"),
    }
    for name, (values, told) in allowed.items():
        if (value := getattr(options, name)) not in values:
            raise InvalidRequest(name, value, told)
