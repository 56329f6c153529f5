"""Schemas that llguidance accepts, but does not follow exactly, are refused; similar ones are followed."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from orcastream.schemas.constraint import Constraint
from orcastream.schemas.errors import InvalidRequest
from orcastream.text.grammar import LIMITS, check_constraint, grammar_of
from orcastream.text.tools.grammar import Calls, Tool, hermes_rules

BYTES = LLTokenizer("byte")
OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "null"}}


def schema(body: dict[str, Any]) -> Constraint:
    return Constraint(json_schema=json.dumps(body))


def takes(grammar: str, text: str) -> bool:
    """Whether an answer that follows `grammar` may be `text`."""
    matcher = LLMatcher(BYTES, grammar, log_level=0, limits=LIMITS)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.consume_tokens(BYTES.tokenize_bytes(text.encode())) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("body", "place", "why"),
    [
        ({"const": 2**53 + 1}, "", "9007199254740993 has too many digits"),
        ({"properties": {"id": {"enum": ["x", [{"a": 2**64 - 1}]]}}}, ".properties.id", "18446744073709551615"),
        ({"const": 123456789.12345679}, "", "123456789.12345679"),
        ({"enum": [1.5e300]}, "", "1.5e"),
        ({"type": "integer", "minimum": 10**30}, "", "minimum 1000000000000000000000000000000"),
        ({"items": {"type": "integer", "maximum": 2**53 + 1}}, ".items", "maximum 9007199254740993"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "", "exclusiveMinimum 0 does not exclude 0"),
        ({"type": "number", "exclusiveMinimum": 10, "exclusiveMaximum": 10.5}, "", "exclusiveMinimum 10"),
        ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}, "", "exclusiveMaximum 0"),
        ({"allOf": [{"type": "number", "exclusiveMinimum": 0}, {"maximum": 0.5}]}, "", "exclusiveMinimum 0"),
        ({"type": "object", "minProperties": 2}, "", "minProperties"),
        ({"minProperties": 2, "patternProperties": {"a|b": {}}, "additionalProperties": False}, "", "minProperties"),
    ],
    ids=str,
)
def test_inexact_schemas_are_refused_with_their_place(body: dict[str, Any], place: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_constraint(schema(body))
    assert caught.value.field == f"constraint.json_schema{place}"
    assert why in str(caught.value)
    with pytest.raises(InvalidRequest, match="allowed: a grammar"):
        check_constraint(Constraint(grammar=f"start: %json {json.dumps(body)}"))


@pytest.mark.parametrize(
    ("body", "good", "bad"),
    [
        ({"const": 2**53}, str(2**53), str(2**53 + 1)),
        ({"const": 10**22}, str(10**22), ""),
        ({"enum": [3.141592653589793, 1e-7]}, "3.141592653589793", "3.141592653589794"),
        ({"const": {"const": 5.0}}, '{"const":5}', ""),
        ({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, str(2**63 - 1), str(2**63)),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "0.5", "0"),
        ({"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 0.5}, "0", "0.5"),
        ({"type": "number", "exclusiveMinimum": 9.5, "maximum": 9.75}, "9.75", "9.5"),
        ({"type": "object", "minProperties": 1}, '{"a":1}', "{}"),
        ({"minProperties": 1, "properties": {"a": {}, "b": {}}, "additionalProperties": False}, '{"b":1}', '{"c":1}'),
        (OPEN, '{"b":null}', '{"\\u0061":null}'),
        ({**OPEN, "$defs": {"x": {"pattern": "\\u00e9"}}}, '{"b":null}', '{"\\u0061":null}'),
        ({"patternProperties": {"^x": {"type": "null"}}, "type": "object"}, '{"x":null}', '{"\\u0078":1}'),
        ({"enum": ["a\u0001", '\n"\\']}, '"a\\u0001"', '"a"'),
    ],
    ids=str,
)
def test_similar_schemas_are_followed(body: dict[str, Any], good: str, bad: str) -> None:
    check_constraint(schema(body))
    assert takes(grammar_of(schema(body)), good)
    assert not takes(grammar_of(schema(body)), bad)


def test_no_escape_evades_the_schema_of_a_tool() -> None:
    rules = hermes_rules(Calls([Tool("f", OPEN)], required=True))
    grammar = LLMatcher.grammar_from_lark("\n".join(["start: calls", *rules]))
    for arguments, is_taken in (('{"a": 1}', True), ('{"b": null}', True), ('{"\\u0061": null}', False)):
        call = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
        assert takes(grammar, call) == is_taken
