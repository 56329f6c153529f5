"""response_format, vLLM's names for it, and the errors for constraints that cannot be followed."""

import json
from typing import Any

import pytest

from orcastream.gateway.errors import ApiError
from orcastream.gateway.openai.document import document
from orcastream.gateway.openai.endpoints import CHAT, COMPLETIONS
from orcastream.gateway.openai.request import parse_body
from orcastream.schemas.errors import InvalidRequest

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"enum": ["é"]}}, "required": ["b", "a"]}
COMPACT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{"enum":["é"]}},"required":["b","a"]}'


def parsed(**body: Any) -> Any:
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    return parse_body(CHAT, json.dumps({**chat, **body}).encode(), 1000).parameters.constraint


def named(**schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}


def described(**said: Any) -> dict[str, Any]:
    """A body whose response format has these fields next to the schema."""
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, **said}}}


@pytest.mark.parametrize(
    ("body", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        ({"response_format": named(**SCHEMA)}, "json_schema", COMPACT),
        ({"guided_json": SCHEMA}, "json_schema", COMPACT),
        ({"guided_json": COMPACT}, "json_schema", COMPACT),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["yes", "no"]}, "choice", ("yes", "no")),
        ({"guided_grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        ({"guided_grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", COMPACT),
        ({"structured_outputs": {"regex": "a", "choice": None}}, "regex", "a"),
        ({"structured_outputs": {"json_object": True}}, "json_schema", '{"type":"object"}'),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, "regex", "a"),
    ],
)
def test_each_name_means_a_constraint(body: dict[str, Any], kind: str, value: object) -> None:
    found = parsed(**body)
    assert (found.kind, getattr(found, kind)) == (kind, value)


def test_completions_accept_constraints_too() -> None:
    raw = json.dumps({"model": "m", "prompt": "hi", "guided_choice": ["a"]}).encode()
    assert parse_body(COMPLETIONS, raw, 1000).parameters.constraint.choice == ("a",)


@pytest.mark.parametrize(
    "body", [{}, {"response_format": {"type": "text"}}, {"response_format": None, "guided_json": None}]
)
def test_no_constraint_requested_means_none_applied(body: dict[str, Any]) -> None:
    assert parsed(**body) is None


def test_one_constraint_may_have_two_names() -> None:
    """guidance sends it under vLLM's older and newer name, and asks for the backend that is used here anyway."""
    both = {"guided_grammar": 'start: "a"', "structured_outputs": {"grammar": 'start: "a"'}}
    assert parsed(**both, guided_decoding_backend="guidance") == parsed(guided_grammar='start: "a"')


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (
            {"response_format": named(properties={"a": {"items": {"type": "strin"}}})},
            "response_format.json_schema.schema.properties.a.items",
        ),
        ({"guided_json": {"properties": {"a": {"uniqueItems": True}}}}, "guided_json.properties.a"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": "(?=a)"}, "guided_regex"),
        ({"guided_grammar": "start: b"}, "guided_grammar"),
        ({"structured_outputs": {"json": {"type": "strin"}}}, "structured_outputs.json"),
    ],
)
def test_an_unsupported_constraint_gets_a_422_with_its_position(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parsed(**body)
    assert (caught.value.status, caught.value.param) == (422, param)
    assert caught.value.message.startswith(f"{param}: got ")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (described(name="\ud800"), "response_format.json_schema.name"),
        (described(description="\ud800"), "response_format.json_schema.description"),
        (described(description=["x"]), "response_format.json_schema.description"),
        (described(strict="\ud800"), "response_format.json_schema.strict"),
        ({"guided_json": 3}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice.1"),
        ({"guided_regex": "a" * 32_769}, "guided_regex"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs.json_object"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"guided_regex": "a", "min_tokens": 2}, "min_tokens"),
    ],
)
def test_an_invalid_constraint_is_named(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(**body)
    assert caught.value.field == field


def test_the_document_lists_constraints() -> None:
    for name in ("ChatRequest", "CompletionRequest"):
        properties = document()["components"]["schemas"][name]["properties"]
        assert {"response_format", "guided_json", "structured_outputs"} <= set(properties)
