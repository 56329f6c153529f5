"""Pieces of grammars in llguidance's form of Lark."""

import json
from collections.abc import Mapping
from typing import Any

_GBNF = "::="
"""What tells the other form of grammars, wherever it stands."""


def as_text(text: str) -> str:
    """A text that comes as it is."""
    return json.dumps(text, ensure_ascii=False)


def as_json(schema: Mapping[str, Any]) -> str:
    """JSON that is valid under a schema."""
    return f"%json {json.dumps(schema, ensure_ascii=False)}".replace(_GBNF, "\\u003a:=")


def as_regex(pattern: str) -> str:
    """A text that the whole of an expression matches: as a terminal's definition."""
    body, escaped = [], False
    for char in pattern:
        if char in "\n\r":
            body.append("n" if char == "\n" else "r") if escaped else body.append("\\n" if char == "\n" else "\\r")
        else:
            body.append("\\/" if char == "/" and not escaped else char)
        escaped = char == "\\" and not escaped
    return f"/{''.join(body)}/"
