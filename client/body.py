"""A request in the form of the gateway's API."""

from collections.abc import Mapping
from typing import Any, Final

from orcastream.client.request import Asked

_KINDS: Final = {"json_schema": "json"}
"""Kinds of constraints that have another name in the API."""


def body_of(asked: Asked, model: str) -> dict[str, Any]:
    """Return the JSON body, streamed and with token counts."""
    prompt = asked.prompt if isinstance(asked.prompt, str) else list(asked.prompt)
    parameters = dict(asked.parameters)
    body: dict[str, Any] = {
        "model": parameters.pop("adapter", None) or model,
        "messages" if asked.is_chat else "prompt": prompt,
        "priority": asked.priority,
        "timeout": asked.timeout_s,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if asked.durable:
        body["durable"] = True
    if "constraint" in parameters:
        body["structured_outputs"] = _structured_outputs(parameters.pop("constraint"))
    if asked.is_chat and "logprobs" in parameters:
        body |= {"logprobs": True, "top_logprobs": parameters.pop("logprobs")}
    return parameters | body


def _structured_outputs(constraint: Mapping[str, Any]) -> dict[str, Any]:
    return {_KINDS.get(kind, kind): value for kind, value in constraint.items()}
