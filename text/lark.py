"""Pieces of grammars in llguidance's Lark dialect."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

_GBNF = "::="
"""Marks the other dialect of grammars, wherever it occurs."""


def as_text(text: str) -> str:
    """Return a literal text."""
    return json.dumps(text, ensure_ascii=False)


def as_json(schema: Mapping[str, Any]) -> str:
    """Return a terminal for JSON that satisfies a schema."""
    return f"%json {json.dumps(schema, ensure_ascii=False)}".replace(_GBNF, "\\u003a:=")


def json_in(grammar: str) -> Iterator[dict[str, Any]]:
    """Yield the `%json` schemas in a grammar that parse as JSON objects."""
    decoder = json.JSONDecoder()
    for rest in grammar.split("%json")[1:]:
        with suppress(ValueError, RecursionError):
            schema, _ = decoder.raw_decode(rest.lstrip())
            if isinstance(schema, dict):
                yield schema


def as_regex(pattern: str) -> str:
    """Return a terminal's definition for a text that the whole expression matches."""
    body, escaped = [], False
    for char in pattern:
        if char in "\n\r":
            body.append("n" if char == "\n" else "r") if escaped else body.append("\\n" if char == "\n" else "\\r")
        else:
            body.append("\\/" if char == "/" and not escaped else char)
        escaped = char == "\\" and not escaped
    return f"/{''.join(body)}/"
