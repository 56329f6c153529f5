"""JSON Schemas as text, and how to find the invalid part of one."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.json_text import parse_json

Schema = dict[str, Any]

_DEFINITIONS: Final = ("$defs", "definitions")
_NAMED: Final = ("properties", "patternProperties", "dependentSchemas", *_DEFINITIONS)
"""Keywords whose value holds schemas by name."""
_DATA: Final = ("const", "enum", "default", "examples")
"""Keywords whose value may look like a schema, but is data."""
_MOST_LOOKS: Final = 300


def read_schema(text: str) -> Schema:
    """Return the object in `text`, in the order of its keys. Raises InvalidRequest if there is none."""
    field, allowed = "constraint.json_schema", "the text of one JSON object"
    try:
        schema = parse_json(text.encode(), parse_constant=_no_number)
    except RecursionError:
        raise InvalidRequest(field, text, allowed, why="nested too deeply") from None
    except ValueError as error:
        raise InvalidRequest(field, text, allowed, why=str(error)) from None
    if not isinstance(schema, dict):
        raise InvalidRequest(field, text, allowed)
    return schema


def find_wrong_part(schema: Schema, error: str, error_of: Callable[[Schema], str]) -> tuple[list[str], Schema]:
    """Return the path to the innermost part of `schema` that alone is rejected with the same `error`, and that part.

    `error_of` returns the error of a schema. After some hundreds of checks the path ends where the search is.
    """
    shared: Schema = {name: schema[name] for name in _DEFINITIONS if name in schema}
    path: list[str] = []
    part, looks = schema, 0
    while True:
        for names, inner in parts_of(part):
            looks += 1
            if looks > _MOST_LOOKS:
                return path, part
            if error_of({**shared, **inner}) == error:
                path += names
                part = inner
                break
        else:
            return path, part


def parts_of(schema: Schema) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Yield the direct subschemas of `schema`, definitions first: others may consist of references to them."""
    for keyword, value in sorted(schema.items(), key=lambda item: item[0] not in _DEFINITIONS):
        if keyword in _DATA:
            continue
        if isinstance(value, list):
            yield from (((keyword, str(index)), each) for index, each in enumerate(value) if isinstance(each, dict))
        elif isinstance(value, dict) and keyword in _NAMED:
            yield from (((keyword, name), each) for name, each in value.items() if isinstance(each, dict))
        elif isinstance(value, dict):
            yield (keyword,), value


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")
