"""The record of a response's request: the fields that the response repeats, and the conversation, for the next one."""

import json
from dataclasses import dataclass
from typing import Self

from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.request import ApiRequest
from orcastream.gateway.openai.responses.items import Item, ResponseInput
from orcastream.gateway.openai.responses.options import ResponseOptions
from orcastream.gateway.openai.responses.shape import ResponseShape

_SAME = (
    *("background", "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "previous_response_id"),
    *("prompt_cache_key", "safety_identifier", "store", "tool_choice", "top_logprobs", "truncation", "user"),
)
"""Options that a response repeats unchanged."""
_UNTOLD_OF_TOOL: Json = {"description": None, "parameters": None, "strict": None}


def options_of(asked: ApiRequest) -> ResponseOptions:
    """Return the options of a body of this endpoint. Raises TypeError for another endpoint's."""
    if not isinstance(asked.options, ResponseOptions):
        raise TypeError("a body of another endpoint")
    return asked.options


def input_of(asked: ApiRequest) -> ResponseInput:
    """Return the conversation in a body of this endpoint. Raises TypeError for another endpoint's."""
    (prompt,) = asked.prompts
    if not isinstance(prompt, ResponseInput):
        raise TypeError("a body of another endpoint")
    return prompt


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """`created` in seconds of Unix time; `told`: see ResponseShape; `items`: the conversation up to the answer."""

    model: str
    created: int
    told: Json
    items: tuple[Item, ...]

    @classmethod
    def of(cls, asked: ApiRequest, shown_id: str, model: str, created: int) -> Self:
        """Make the record of a checked body of this endpoint.

        `shown_id`, `model`: the client's names of request and model.
        """
        options, parameters = options_of(asked), asked.parameters
        told = {name: getattr(options, name) for name in _SAME}
        told |= {
            "reasoning": {"effort": options.reasoning.get("effort"), "summary": None},
            "service_tier": options.service_tier or "default",
            "temperature": parameters.temperature,
            "text": {"format": options.text.get("format") or {"type": "text"}, "verbosity": "medium"},
            "tools": [_UNTOLD_OF_TOOL | tool for tool in options.tools],
            "top_p": parameters.top_p,
        }
        named = input_of(asked).with_ids(f"{shown_id.removeprefix('resp_')}_in")
        return cls(model, created, told, named.items)

    @classmethod
    def unknown(cls, model: str, created_ms: int) -> Self:
        """Return the record of a request that has none."""
        return cls(model, created_ms // 1000, {}, ())

    def shape(self, shown_id: str) -> ResponseShape:
        """Return the shape of the response."""
        return ResponseShape(shown_id, self.model, self.created, self.told)

    def encode(self) -> str:
        """Return the stored form."""
        body = {"model": self.model, "created": self.created, "told": self.told, "items": self.items}
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def decode(cls, raw: bytes) -> Self | None:
        """Read the stored form; None if it is not in this format."""
        try:
            body = json.loads(raw)
            return cls(body["model"], body["created"], body["told"], tuple(body["items"]))
        except (ValueError, KeyError, TypeError):
            return None
