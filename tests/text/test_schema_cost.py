"""Schemas that would take hours and all memory to compile are refused at once; similar but cheap ones are not."""

import json
from typing import Any

import pytest

from orcastream.schemas.constraint import Constraint
from orcastream.schemas.errors import InvalidRequest
from orcastream.text.grammar import check_constraint, content_rules

LARGE = {"type": "integer", "multipleOf": 4_000_037}
PATTERNS = [{"type": "string", "pattern": f".*a{number}.*"} for number in range(12)]
CHAIN = {str(number): {**each, "$ref": f"#/$defs/{number + 1}"} for number, each in enumerate(PATTERNS)}
CHAIN[str(len(PATTERNS))] = {"type": "string"}


def schema(body: dict[str, Any]) -> Constraint:
    return Constraint(json_schema=json.dumps(body))


def of_x(**part: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": part}}


@pytest.mark.parametrize(
    ("constraint", "why"),
    [
        (schema(LARGE), "multipleOf"),
        (schema({"type": "number", "multipleOf": 4.000037}), "multipleOf"),
        (schema({"allOf": [{"type": "integer", "multipleOf": prime} for prime in (983, 991, 997)]}), "multipleOf"),
        (schema({"default": {"a": LARGE}, "$ref": "#/default/a"}), "multipleOf"),
        (Constraint(grammar=f"start: %json\n{json.dumps(LARGE)}"), "multipleOf"),
        (schema({"allOf": PATTERNS}), "may apply"),
        (schema({"allOf": [of_x(**each) for each in PATTERNS]}), "may apply"),
        (schema({"allOf": [of_x(anyOf=[each]) for each in PATTERNS]}), "may apply"),
        (schema({"allOf": [{"type": "array", "items": each} for each in PATTERNS]}), "may apply"),
        (schema({"$defs": CHAIN, "$ref": "#/$defs/0"}), "may apply"),
    ],
)
def test_expensive_schemas_are_refused(constraint: Constraint, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        check_constraint(constraint)
    assert caught.value.field == f"constraint.{constraint.kind}"


@pytest.mark.parametrize(
    "body",
    [
        of_x(type="integer", multipleOf=1_000_000),
        {"properties": {str(number): {"type": "number", "multipleOf": 0.01} for number in range(200)}},
        {"properties": {str(each): {"type": "integer", "multipleOf": each} for each in (86_400, 4096)}},
        {"properties": {str(number): each for number, each in enumerate(PATTERNS)}},
        {"anyOf": [of_x(**each) for each in PATTERNS]},
        {"allOf": [{"properties": {str(number): each}} for number, each in enumerate(PATTERNS)]},
    ],
    ids=str,
)
def test_cheap_schemas_are_followed(body: dict[str, Any]) -> None:
    check_constraint(schema(body))
    assert content_rules(schema(body))
