"""`tools`, `tool_choice` and `parallel_tool_calls` of a conversation, in the forms of both endpoints."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from orcastream.gateway.errors import unsupported
from orcastream.gateway.openai.body import Body
from orcastream.gateway.openai.cache_marks import mark_schemas, without_cache_marks
from orcastream.gateway.openai.constraints import checked
from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.known_names import check_names
from orcastream.gateway.openai.prompt import ToolUse
from orcastream.gateway.openai.unimplemented import neutral_schemas, without_neutral
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.utf8_text import check_value
from orcastream.text.tools.grammar import Calls, Tool

TOOL_NAMES: Final = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
MAX_TOOLS: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
_NAME_RULE: Final = "1 to 128 characters of A-Z a-z 0-9 _ . -"
_MODES: Final = ("none", "auto", "required")
_OF_FUNCTION: Final = ("name", "description", "parameters", "strict")
_NEUTRAL: Final[Mapping[str, Sequence[Any]]] = MappingProxyType(
    {"allowed_callers": (["direct"],), "async": (False,), "defer_loading": (False,), "output_schema": ()}
)
"""Members of a function that are not implemented, with those of their values that have no effect."""
_Unwrap = Callable[[str, object, str], tuple[str, Json]]
"""From the path, the object there and its type to the object's content and the content's path."""


def take_tools(body: Body) -> ToolUse | None:
    """Read the tools as `read_tools` does, and remove them from the body."""
    use = read_tools(body)
    for name in TOOL_NAMES:
        body.take(name)
    return use


def read_tools(body: Body, *, is_flat: bool = False) -> ToolUse | None:
    """Return the tools that an answer may call; None if it may call none. Raises InvalidRequest, or ApiError with
    the path.

    `is_flat`: the object's fields are next to its type, as in /v1/responses, and not under the type's name.
    """
    unwrap = _flat if is_flat else _nested
    functions = _functions(body.get("tools", []), unwrap)
    choice, parallel = body.get("tool_choice", "auto"), body.get("parallel_tool_calls", True)
    if not isinstance(parallel, bool):
        raise InvalidRequest("parallel_tool_calls", parallel, "true or false")
    mode, allowed = _choice(choice, [function["name"] for _, function in functions], unwrap)
    if not functions or mode == "none":
        return None
    is_required = mode == "required"
    tools = [_callable(*each, is_required) for each in functions if each[1]["name"] in allowed]
    is_named = isinstance(choice, dict) and choice.get("type") == "function"  # as in OpenAI's API, it is called once
    calls = Calls(tools, is_required, parallel and not is_named)
    followed = is_required or not parallel or len(allowed) < len(functions) or any(tool.parameters for tool in tools)
    if followed:
        body.names["constraint"] = "tool_choice"
    return ToolUse([{"type": "function", "function": function} for _, function in functions], calls, followed)


def tool_schemas(*, is_flat: bool = False) -> Json:
    """Return the JSON schemas of these parameters; `is_flat`: see `read_tools`."""
    of_type = _flat_schema if is_flat else _nested_schema
    name = {"type": "string", "pattern": f"^{_NAME.pattern}$"}
    function = {
        "type": "object",
        "properties": {
            "name": name,
            "description": {"type": ["string", "null"]},
            "parameters": {"type": ["object", "null"], "description": "A JSON Schema of type object."},
            "strict": {
                "type": ["boolean", "null"],
                "description": "Calls of this tool satisfy its schema, even where no call is required.",
            },
            **mark_schemas(),
            **neutral_schemas(_NEUTRAL),
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    named = of_type("function", {"type": "object", "properties": {"name": name}, "required": ["name"]})
    allowed = {
        "type": "object",
        "properties": {
            "mode": {"enum": ["auto", "required"]},
            "tools": {"type": "array", "minItems": 1, "maxItems": MAX_TOOLS, "items": named},
        },
        "required": ["mode", "tools"],
        "additionalProperties": False,
    }
    return {
        "tools": {
            "type": "array",
            "maxItems": MAX_TOOLS,
            "items": of_type("function", function),
            "description": "Functions that the model may call.",
        },
        "tool_choice": {
            "anyOf": [{"enum": list(_MODES)}, named, of_type("allowed_tools", allowed)],
            "description": "Whether a tool may or must be called; with `required` or a name, the answer is only calls.",
        },
        "parallel_tool_calls": {"type": "boolean", "description": "False: at most one call."},
    }


def _nested_schema(kind: str, inner: Json) -> Json:
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, kind: inner, **mark_schemas()},
        "required": ["type", kind],
        "additionalProperties": False,
    }


def _flat_schema(kind: str, inner: Json) -> Json:
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, **inner["properties"]},
        "required": ["type", *inner["required"]],
        "additionalProperties": False,
    }


def _functions(value: object, unwrap: _Unwrap) -> list[tuple[str, Json]]:
    """Return each function with its path."""
    if not isinstance(value, list):
        raise InvalidRequest("tools", value, "an array of tools")
    if len(value) > MAX_TOOLS:
        raise InvalidRequest("tools", f"{len(value)} tools", f"at most {MAX_TOOLS} tools")
    functions = [_function(*unwrap(f"tools.{number}", each, "function")) for number, each in enumerate(value)]
    seen: set[str] = set()
    for field, function in functions:
        name = function["name"]
        if name in seen:
            raise InvalidRequest(f"{field}.name", name, "another name for each tool")
        seen.add(name)
    return functions


def _function(field: str, function: Json) -> tuple[str, Json]:
    """Return the function at that path as templates take it: `{"name", "description", "parameters"}`."""
    function = without_neutral(without_cache_marks(field, function), {*_OF_FUNCTION}, _NEUTRAL, f"{field}.")
    check_names(field, function, _OF_FUNCTION)
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(f"{field}.name", name, _NAME_RULE)
    if description is not None and not isinstance(description, str):
        raise InvalidRequest(f"{field}.description", description, "text")
    if not isinstance(function.get("strict"), bool | None):
        raise InvalidRequest(f"{field}.strict", function["strict"], "true or false")
    parameters = function.get("parameters")
    if parameters is not None and (not isinstance(parameters, dict) or parameters.get("type", "object") != "object"):
        raise InvalidRequest(f"{field}.parameters", parameters, "a JSON Schema of the type object")
    check_value(field, function)
    return field, function


def _nested(field: str, value: object, kind: str) -> tuple[str, Json]:
    """Return the content of an object of the implemented type, and the content's path: under the type's name."""
    value = _of_type(field, value, kind)
    check_names(field, without_cache_marks(field, value), ("type", kind))
    inner, field = value.get(kind), f"{field}.{kind}"
    if not isinstance(inner, dict):
        raise InvalidRequest(field, inner, "an object")
    return field, inner


def _flat(field: str, value: object, kind: str) -> tuple[str, Json]:
    """As `_nested`, with the content next to the type."""
    return field, {name: each for name, each in _of_type(field, value, kind).items() if name != "type"}


def _of_type(field: str, value: object, kind: str) -> Json:
    if not isinstance(value, dict):
        raise InvalidRequest(field, value, f"an object of the type {kind}")
    if value.get("type") != kind:
        raise unsupported(f"{field}.type", value.get("type"), f"{kind}: other types are not implemented")
    return value


def _choice(value: object, known: Sequence[str], unwrap: _Unwrap) -> tuple[str, frozenset[str]]:
    """Return the mode, and the names that may be called."""
    field = "tool_choice"
    if isinstance(value, dict):
        mode, names = _named(field, value, known, unwrap)
        return mode, frozenset(names)
    if not isinstance(value, str) or value not in _MODES:
        raise InvalidRequest(field, value, f"{', '.join(_MODES)}, or the name of a function")
    if value == "required" and not known:
        raise InvalidRequest(field, value, "none or auto without tools")
    return value, frozenset(known)


def _named(field: str, value: Json, known: Sequence[str], unwrap: _Unwrap) -> tuple[str, list[str]]:
    if value.get("type") != "allowed_tools":
        return "required", [_name(*unwrap(field, value, "function"), known)]
    field, allowed = unwrap(field, value, "allowed_tools")
    check_names(field, allowed, ("mode", "tools"))
    mode, tools = allowed.get("mode"), allowed.get("tools")
    if mode not in ("auto", "required"):
        raise InvalidRequest(f"{field}.mode", mode, "auto or required")
    field = f"{field}.tools"
    if not isinstance(tools, list) or not tools:
        raise InvalidRequest(field, tools, "an array of at least one function's name")
    return mode, [_name(*unwrap(f"{field}.{number}", one, "function"), known) for number, one in enumerate(tools)]


def _name(field: str, function: Json, known: Sequence[str]) -> str:
    check_names(field, function, ("name",))
    name = function.get("name")
    if not isinstance(name, str) or name not in known:
        allowed = f"the name of one of the tools ({', '.join(known) or 'none'})"
        raise InvalidRequest(f"{field}.name", name, allowed)
    return name


def _callable(field: str, function: Json, is_required: bool) -> Tool:
    """Return the tool with the schema that its calls follow, checked. Raises ApiError if no call can satisfy it."""
    parameters = function.get("parameters")
    if not parameters or not (is_required or function.get("strict")):
        return Tool(function["name"])
    checked(f"{field}.parameters", "json_schema", parameters)
    return Tool(function["name"], parameters)
