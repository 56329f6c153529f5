"""A constraint as a grammar, and the error if it cannot be followed."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from orcastream.schemas.constraint import Constraint
from orcastream.schemas.errors import InvalidRequest
from orcastream.text.json_schema import Schema, find_wrong_part, read_schema
from orcastream.text.lark import as_json, as_regex, as_text, json_in
from orcastream.text.schema_cost import too_costly
from orcastream.text.schema_exactness import not_exact

LIMITS: Final = LLParserLimits(max_lexer_states=20_000, verbose_errors=False)
"""Limit for one answer, in states of its lexer of a kilobyte or two each. Errors quote no state."""

WHITE_SPACE: Final = r"[\x20\x0A\x0D\x09]{1,32}"
"""JSON's white space, but bounded: a model that repeats itself would never reach the next value."""
_ESCAPES: Final = 'nrbtf"\\\\'
_ALLOWED: Final = {
    "json_schema": "a schema that answers can follow exactly",
    "regex": "an expression that answers can follow exactly",
    "choice": "texts that answers can follow exactly",
    "grammar": "a grammar that answers can follow exactly",
}
_LONGEST: Final = 300
_PLACE: Final = re.compile(r"(?:at )?(\d+)\((\d+)\): (.*?)(?:\n +\d+ \||\Z)", re.DOTALL)
_REGEX_ERROR: Final = re.compile(r"\n    (?P<before> *)\^.*?\nerror: (?P<what>[^\n]*)", re.DOTALL)


def check_constraint(constraint: Constraint) -> None:
    """Raise InvalidRequest, naming the defect and its place, if no answer could follow `constraint` exactly.

    Needs no model: whether the model's tokens have the names used in a grammar is for the worker to check. May take a
    second, during which other threads run.
    """
    error = _fault_in(grammar_of(constraint))
    if error:
        raise refusal(constraint, error)


def grammar_of(constraint: Constraint) -> str:
    """Return the grammar of `constraint`, which may still be invalid. Raises InvalidRequest if there is none."""
    match constraint.kind:
        case "json_schema":
            return _of_schema(_checked(read_schema(constraint.json_schema), constraint))
        case "regex":
            return LLMatcher.grammar_from_regex(constraint.regex)
        case "choice":
            texts = " | ".join(map(as_text, constraint.choice))
            return LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: {texts}")
        case _:
            for schema in json_in(constraint.grammar):
                _checked(schema, constraint)
            return LLMatcher.grammar_from_lark(_lark(constraint.grammar))


def content_rules(constraint: Constraint) -> list[str]:
    """Return `constraint` as the rule `content` of a larger Lark grammar.

    Raises InvalidRequest as `grammar_of` does.
    """
    match constraint.kind:
        case "json_schema":
            schema = _checked(read_schema(constraint.json_schema), constraint)
            return [f"content: {as_json(_with_options(schema))}"]
        case "regex":
            return ["content: CONTENT", f"CONTENT: {as_regex(constraint.regex)}"]
        case "choice":
            return ["content: CONTENT", f"CONTENT: {' | '.join(map(as_text, constraint.choice))}"]
        case _:
            return [f"content: %lark {{\n{_lark(constraint.grammar)}\n}}"]


def refusal(constraint: Constraint, error: str) -> InvalidRequest:
    """Return the error for a constraint that llguidance rejects with `error`."""
    kind = constraint.kind
    value: object = getattr(constraint, kind)
    field = f"constraint.{kind}"
    if kind == "json_schema":
        path, value = find_wrong_part(read_schema(constraint.json_schema), error, _error_of)
        field = ".".join([field, *path])
    return InvalidRequest(field, value, _ALLOWED[kind], why=_explained(kind, error))


def _checked(schema: Schema, constraint: Constraint) -> Schema:
    """Return `schema`, a part of `constraint`. Raises InvalidRequest if it would be too costly to compile, or if
    llguidance would not follow it exactly.
    """
    kind, path = constraint.kind, list[str]()
    why = too_costly(schema)
    if not why and (why := not_exact(schema)) and kind == "json_schema":
        path, _ = find_wrong_part(schema, why, not_exact)
    if why:
        field = ".".join([f"constraint.{kind}", *path])
        raise InvalidRequest(field, getattr(constraint, kind), _ALLOWED[kind], why=why)
    return schema


def _lark(text: str) -> str:
    """Return the grammar in Lark; one that contains `::=` is GBNF. Raises InvalidRequest if it cannot be parsed."""
    try:
        return any_to_lark(text)
    except Exception as error:  # the converter raises exceptions of many kinds
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidRequest("constraint.grammar", text, _ALLOWED["grammar"], why=why) from None


def _of_schema(schema: Schema) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(_with_options(schema)))


def _with_options(schema: Schema) -> Schema:
    """Add rules for white space and escapes, unless the schema has its own llguidance options under `x-guidance`."""
    own = schema.get("x-guidance", {})
    if not isinstance(own, dict):
        return schema
    spaces = {} if "whitespace_flexible" in own else {"whitespace_pattern": WHITE_SPACE}
    return {**schema, "x-guidance": {**spaces, "json_allowed_escapes": escapes_for(schema), **own}}


def escapes_for(schema: Mapping[str, Any]) -> str:
    """Return the letters of JSON's escapes that answers may use.

    In the names of properties, `\\u` could spell the ones that a schema declares, and evade what it says of them. So it
    is only allowed where the schema itself has other control characters.
    """
    text = json.dumps(schema, ensure_ascii=False).replace("\\\\", "")  # in which a pattern may spell such escapes
    return _ESCAPES + "u" if "\\u00" in text else _ESCAPES


def _error_of(schema: Schema) -> str:
    return _fault_in(_of_schema(schema))


def _fault_in(grammar: str) -> str:
    """Return why llguidance does not take a grammar, or an empty string."""
    try:
        return LLMatcher.validate_grammar(grammar, limits=LIMITS)
    except BaseException as error:  # a panic, as on ^[é-ü]$|[é-ü], is no Exception
        if type(error).__name__ != "PanicException":
            raise
        return f"llguidance fails on it: {error}"


def _explained(kind: str, error: str) -> str:
    """Return the error in one line, with its place if it contains one."""
    if kind == "regex" and (found := _REGEX_ERROR.search(error)):
        error = f"character {len(found['before']) + 1}: {found['what']}"
    elif kind == "grammar" and (found := _PLACE.match(error)):
        error = f"line {found[1]}, column {found[2]}: {found[3]}"
    elif found := _PLACE.match(error):
        error = found[3]
    line = " ".join(error.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
