"""/v1/responses: continues a conversation; the response can be retrieved by its id."""

from types import MappingProxyType
from typing import Any, Final

from orcastream.gateway.errors import unsupported
from orcastream.gateway.openai.body import Body
from orcastream.gateway.openai.constraints import format_schema, read_format
from orcastream.gateway.openai.endpoint import GenerationEndpoint, Json
from orcastream.gateway.openai.prompt import Prompt
from orcastream.gateway.openai.responses.item_schemas import input_schema
from orcastream.gateway.openai.responses.items import ResponseInput, read_input
from orcastream.gateway.openai.responses.options import INCLUDED, LOGPROBS, ResponseOptions, check_included
from orcastream.gateway.openai.template_kwargs import EFFORT_SCHEMA, TEMPLATE_KWARGS_SCHEMA, take_template_kwargs
from orcastream.gateway.openai.tools import read_tools, tool_schemas
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.utf8_text import check_text

_REASONING: Final[dict[str, tuple[Any, ...]]] = {
    "context": (None, "auto"),
    "generate_summary": (None,),
    "mode": (None, "standard"),
    "summary": (None,),
}
"""Members of `reasoning` except the effort, with their values that have no effect."""
_VERBOSITIES: Final = (None, "medium")


class Responses(GenerationEndpoint):
    """See GenerationEndpoint. A body asks for one choice."""

    path = "/v1/responses"
    summary = "The response to a text or a conversation."
    body_name = "ResponseRequest"
    answer_name = "ResponseObject"
    id_prefix = "resp_"
    operation = "chat"
    prompt_name = "input"
    default_max_tokens = None
    splits = True
    own_names = frozenset({"input", "chat_template_kwargs"})
    lacks = frozenset(
        {
            *("max_tokens", "response_format"),
            *("n", "best_of", "use_beam_search", "length_penalty", "early_stopping"),
        }
    )
    neutral = MappingProxyType(
        {
            "access_programs": (),
            "background_options": ({}, {"completion_window": "soonest"}),
            "best_of": (1,),
            "context_management": ([],),
            "conversation": (),
            "early_stopping": (False,),
            "image": (),
            "length_penalty": (1,),
            "max_tool_calls": (),
            "n": (1,),
            "prompt": (),
            "use_beam_search": (False,),
        }
    )
    options = ResponseOptions

    def take_prompts(self, body: Body) -> list[Prompt]:
        """Take instructions and input as one conversation."""
        body.names["messages"] = self.prompt_name
        instructions = body.get("instructions")
        if instructions is not None:
            if not isinstance(instructions, str):
                raise InvalidRequest("instructions", instructions, "text")
            check_text("instructions", instructions)
        kwargs = take_template_kwargs(body, "reasoning.effort", _effort(body))
        items = read_input(body.take("input"))
        return [ResponseInput.of(items, instructions, kwargs, read_tools(body, is_flat=True))]

    def take_parameters(self, body: Body) -> Json:
        """Take parameters that have another name or place in the payload; all of them stay in the options."""
        _read_text(body)
        return _max_tokens(body) | _logprobs(body) | _on_disconnect(body)

    def prompt_schema(self) -> Json:
        """Return the schema: text, or items."""
        return input_schema()

    def own_schemas(self, common: Json) -> Json:
        """Return the schemas of parameters that the options leave open."""
        verbosity = {"enum": list(_VERBOSITIES), "description": "Not implemented."}
        return {
            "chat_template_kwargs": TEMPLATE_KWARGS_SCHEMA,
            "include": {"type": "array", "items": {"enum": list(INCLUDED)}},
            "max_output_tokens": common["max_output_tokens"],
            **tool_schemas(is_flat=True),
            "reasoning": {
                "type": "object",
                "properties": {
                    "effort": {"anyOf": [EFFORT_SCHEMA, {"type": "null"}]},
                    **{name: {"enum": list(values)} for name, values in _REASONING.items()},
                },
                "additionalProperties": False,
            },
            "text": {
                "type": "object",
                "properties": {
                    "format": {"anyOf": [format_schema(is_flat=True), {"type": "null"}]},
                    "verbosity": verbosity,
                },
                "additionalProperties": False,
            },
        }


def _max_tokens(body: Body) -> Json:
    if "max_output_tokens" not in body:
        return {}
    body.names["max_tokens"] = "max_output_tokens"
    return {"max_tokens": body["max_output_tokens"]}


def _logprobs(body: Body) -> Json:
    included = check_included("include", body.get("include", []))
    if LOGPROBS not in included:
        return {}
    body.names["logprobs"] = "top_logprobs"
    return {"logprobs": body.get("top_logprobs", 0)}


def _on_disconnect(body: Body) -> Json:
    """Set `continue` for background requests: a client that does not wait cannot leave."""
    if body.get("background") is not True:
        return {}
    asked = body.get("on_disconnect", "continue")
    if asked != "continue":
        raise InvalidRequest("on_disconnect", asked, "continue with background=true")
    return {"on_disconnect": asked}


def _effort(body: Body) -> object:
    """Return the effort in `reasoning`; its other members are not implemented."""
    value = body.get("reasoning", {})
    if not isinstance(value, dict):
        raise InvalidRequest("reasoning", value, "an object with an effort")
    for name, each in value.items():
        if name == "effort":
            continue
        if name not in _REASONING:
            raise InvalidRequest(f"reasoning.{name}", each, f"effort, {', '.join(_REASONING)}")
        if each not in _REASONING[name]:
            allowed = f"{', '.join(map(repr, _REASONING[name]))}: it is not implemented"
            raise unsupported(f"reasoning.{name}", each, allowed)
    return value.get("effort")


def _read_text(body: Body) -> None:
    """Read `text`: the format becomes a constraint."""
    body.names["response_format"] = "text.format"
    value = body.get("text", {})
    if not isinstance(value, dict):
        raise InvalidRequest("text", value, "an object with a format")
    for name, each in value.items():
        if name == "format":
            body.constraints |= {} if each is None else read_format("text.format", each, is_flat=True)
        elif name != "verbosity":
            raise InvalidRequest(f"text.{name}", each, "format, verbosity")
        elif each not in _VERBOSITIES:
            raise unsupported("text.verbosity", each, f"{', '.join(map(repr, _VERBOSITIES))}: it is not implemented")
