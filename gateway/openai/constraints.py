"""Constraints on an answer, under OpenAI's and vLLM's parameter names."""

import json
from collections.abc import Set
from typing import Any, Final

from pydantic import ValidationError

from orcastream.gateway.errors import ApiError
from orcastream.gateway.openai.body import Body
from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.known_names import check_names
from orcastream.schemas.constraint import Constraint
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.explain import first_complaint
from orcastream.schemas.limits import MAX_CONSTRAINT_CHOICE_LENGTH, MAX_CONSTRAINT_CHOICES, MAX_CONSTRAINT_LENGTH
from orcastream.schemas.utf8_text import check_text
from orcastream.text.grammar import check_constraint

_ANY_OBJECT: Final = {"type": "object"}
_GUIDED: Final = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""vLLM's older names, mapped to those in `structured_outputs`."""
_KINDS: Final = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
_NAMED: Final = ("name", "description", "schema", "strict")
CONSTRAINT_NAMES: Final = frozenset({"response_format", "structured_outputs", *_GUIDED})


def take_constraint(body: Body, names: Set[str]) -> Json:
    """Return the payload's `constraint` if the body sets one under one of `names`, or the endpoint took one from it.

    Raises InvalidRequest, and ApiError if no answer can satisfy it.
    """
    asked: dict[str, tuple[str, Any]] = dict(body.constraints)
    for name in [name for name in body if name in names]:
        value = body.take(name)
        if name == "response_format":
            asked |= read_format(name, value)
        elif name == "structured_outputs":
            asked |= _of_structured_outputs(value)
        else:
            asked[name] = (_GUIDED[name], value)
    if not asked:
        return {}
    if len(asked) > 1 and len({json.dumps(each) for each in asked.values()}) > 1:  # guidance sends one under two names
        *others, last = asked
        raise InvalidRequest(last, asked[last][1], f"nothing with {', '.join(others)}: an answer follows one of them")
    field, (kind, value) = next(iter(asked.items()))
    return {"constraint": checked(field, _KINDS[kind], value)}


def constraint_schemas() -> Json:
    """Return the JSON schemas of these parameters."""
    text = {"type": "string", "minLength": 1, "maxLength": MAX_CONSTRAINT_LENGTH}
    schema = {"anyOf": [{"type": "object"}, text], "description": "A JSON Schema that the answer satisfies."}
    choice = {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_CONSTRAINT_CHOICES,
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_CONSTRAINT_CHOICE_LENGTH},
        "description": "Texts; the answer is one of them.",
    }
    regex = {**text, "description": "A regular expression that the whole answer matches."}
    grammar = {**text, "description": "A grammar in llguidance's Lark dialect, or in GBNF."}
    return {
        "response_format": format_schema(),
        "guided_json": schema,
        "guided_regex": regex,
        "guided_choice": choice,
        "guided_grammar": grammar,
        "structured_outputs": {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "properties": {
                "json": schema,
                "regex": regex,
                "choice": choice,
                "grammar": grammar,
                "json_object": {"type": "boolean", "const": True},
            },
            "additionalProperties": False,
            "description": "The same constraints in vLLM's form.",
        },
    }


def format_schema(*, is_flat: bool = False) -> Json:
    """Return the JSON schema of a format; `is_flat`: see `read_format`."""
    named: Json = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "description": {"type": ["string", "null"]},
            "schema": {"type": "object"},
            "strict": {
                "type": ["boolean", "null"],
                "description": "No effect: a schema is always followed exactly.",
            },
        },
        "required": ["name", "schema"],
        "additionalProperties": False,
    }
    unset = {name: {"type": "null"} for name in (_NAMED if is_flat else ("json_schema",))}
    plain = {"properties": {"type": {"enum": ["text", "json_object"]}, **unset}, "additionalProperties": False}
    kind = {"type": {"const": "json_schema"}}
    schema = {"properties": {**kind, "json_schema": named}, "required": ["json_schema"], "additionalProperties": False}
    if is_flat:
        schema = {**named, "properties": {**kind, **named["properties"]}}
    return {"type": "object", "required": ["type"], "oneOf": [plain, schema]}


def read_format(field: str, value: object, *, is_flat: bool = False) -> dict[str, tuple[str, Any]]:
    """Return a format's constraint by its parameter path; empty for text. `is_flat`: the schema is not nested in it."""
    if not isinstance(value, dict):
        raise InvalidRequest(field, value, "an object with a type")
    kind = value.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidRequest(f"{field}.type", kind, "text, json_object or json_schema")
    own = _NAMED if is_flat else ("json_schema",)
    check_names(field, value, ("type", *own) if kind == "json_schema" else ("type",), frozenset(own))
    if kind == "text":
        return {}
    if kind == "json_object":
        return {field: ("json", _ANY_OBJECT)}
    named = {name: each for name, each in value.items() if name != "type"} if is_flat else value.get("json_schema")
    field = field if is_flat else f"{field}.json_schema"
    if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
        raise InvalidRequest(field, named, "an object with a name and a schema")
    check_names(field, named, _NAMED)
    for name in ("name", "description"):
        value = named.get(name)
        if isinstance(value, str):
            check_text(f"{field}.{name}", value)
        elif value is not None or name == "name":
            raise InvalidRequest(f"{field}.{name}", value, "text")
    if not isinstance(named.get("strict"), bool | None):
        raise InvalidRequest(f"{field}.strict", named["strict"], "true or false")
    return {f"{field}.schema": ("json", named["schema"])}


def _of_structured_outputs(value: object) -> dict[str, tuple[str, Any]]:
    field = "structured_outputs"
    if not isinstance(value, dict):
        raise InvalidRequest(field, value, f"an object with one of {', '.join([*_KINDS, 'json_object'])}")
    given = {name: each for name, each in value.items() if each is not None}
    check_names(field, given, (*_KINDS, "json_object"))
    if given.get("json_object") is False:
        del given["json_object"]
    found = {f"{field}.{name}": (name, each) for name, each in given.items() if name != "json_object"}
    if "json_object" in given:
        if given["json_object"] is not True:
            raise InvalidRequest(f"{field}.json_object", given["json_object"], "true or false")
        found[f"{field}.json_object"] = ("json", _ANY_OBJECT)
    return found


def checked(field: str, kind: str, value: object) -> Json:
    """Return a constraint in the payload's form; errors name `field`, the client's name."""
    if kind == "json_schema" and isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        constraint = Constraint.model_validate({kind: value})
    except ValidationError as error:
        told = first_complaint(error)
        raise told.renamed(f"{field}{told.field.removeprefix(kind)}") from None
    try:
        check_constraint(constraint)
    except InvalidRequest as error:
        told = error.renamed(f"{field}{error.field.removeprefix(f'constraint.{kind}')}")
        raise ApiError(422, str(told), param=told.field, code="invalid_constraint") from None
    return {kind: value}
