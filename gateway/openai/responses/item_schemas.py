"""The JSON schemas of input items."""

from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.messages import MAX_MESSAGES
from orcastream.gateway.openai.responses.item_kinds import PHASES, REFERENCE, ROLES
from orcastream.gateway.openai.responses.items import STATUSES
from orcastream.gateway.openai.responses.text_parts import MESSAGE_PARTS, REASONING_PARTS, RESULT_PARTS
from orcastream.gateway.openai.tool_messages import MAX_CALL_ID_LENGTH

_TEXT: Json = {"type": "string"}
_CALL_ID: Json = {"type": "string", "minLength": 1, "maxLength": MAX_CALL_ID_LENGTH}


def input_schema() -> Json:
    """Return the schema: text, or an array of items."""
    return {
        "anyOf": [
            _TEXT,
            {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": {"anyOf": _items()}},
        ]
    }


def _items() -> list[Json]:
    phase = {"enum": [*PHASES, None]}
    message = {"role": {"enum": list(ROLES)}, "content": _texts(MESSAGE_PARTS), "phase": phase}
    call = {"call_id": _CALL_ID, "name": {"type": "string", "minLength": 1}, "arguments": _TEXT}
    result = {"call_id": _CALL_ID, "output": _texts(RESULT_PARTS)}
    thought = {**_texts(REASONING_PARTS), "description": "The model's reasoning, for templates that read it."}
    return [
        _item("message", message, ["role", "content"]),
        _item("function_call", call, ["type", *call]),
        _item("function_call_output", result, ["type", *result]),
        {
            "type": "object",
            "properties": {"type": {"const": REFERENCE}, "id": {"type": "string", "minLength": 1}},
            "required": ["type", "id"],
        },
        _item(
            "reasoning",
            {"content": {"anyOf": [thought, {"type": "null"}, {"type": "array", "items": {}, "maxItems": 0}]}},
            ["type"],
        ),
    ]


def _item(kind: str, own: Json, required: list[str]) -> Json:
    kinds = {"const": kind} if "type" in required else {"enum": [kind, None]}
    properties = {"type": kinds, "id": {"type": ["string", "null"]}, "status": {"enum": [*STATUSES, None]}}
    return {"type": "object", "properties": {**properties, **own}, "required": required}


def _texts(kinds: tuple[str, ...]) -> Json:
    part = {
        "type": "object",
        "properties": {"type": {"enum": list(kinds)}, "text": _TEXT},
        "required": ["type", "text"],
    }
    return {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": part}]}
