"""Makes a model write tool calls: a grammar for its format, built from the tools' own schemas."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orcastream.text import reasoning
from orcastream.text.grammar import WHITE_SPACE, escapes_for
from orcastream.text.lark import as_json, as_regex, as_text
from orcastream.text.marks import SPACE
from orcastream.text.tools import hermes, llama

_COMPACT: Final = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""White space as models write it in calls."""
_OPENING: Final = (
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
)
"""Keywords with which a schema itself controls the names of its properties."""
_ANY: Final = "(?s:.*)"
_SPACES: Final = f"[{SPACE}]*"
_TAG: Final = re.escape(llama.TAG)
_THINKING: Final = f"{_SPACES}{reasoning.OPENS}{_ANY}"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call; `parameters` is a JSON Schema of one object, None for any object."""

    name: str
    parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that an answer may have.

    `required`: only calls, at least one; otherwise text may come before, between or instead of them, but none that
    opens a call and is none. `parallel`: more than one call is allowed, if the format supports it. `beside_content`:
    content that follows a constraint, possibly JSON, may come in their place. `behind_thinking`: the answer may begin
    with reasoning, so text must not open it.
    """

    tools: Sequence[Tool]
    required: bool
    parallel: bool = True
    beside_content: bool = False
    behind_thinking: bool = False


def hermes_rules(calls: Calls) -> list[str]:
    """Return Lark for calls as HermesParser reads them: rules `calls`, and `calls_or_text` if none is required."""
    lines = [
        'calls: call ("\\n" call)*' if calls.parallel else "calls: call",
        f'call: "{hermes.OPENS}" rest',
        f'rest: "\\n" body "\\n{hermes.CLOSES}"',
        *_bodies(calls.tools, "arguments"),
    ]
    if not calls.required:
        lines += [f"calls_or_text: opened{'*' if calls.parallel else '?'} TEXT"]
        lines += ["opened: opening rest", "opening[lazy]: OPENING"]
        lines += [f"OPENING: {_but(calls, f'{_ANY}{hermes.OPENS}')}"]
        lines += [f"TEXT: {_but(calls, _ANY, f'{_ANY}{hermes.OPENS}{_ANY}')}"]
    return lines


def llama_rules(calls: Calls) -> list[str]:
    """Return Lark for one call as LlamaParser reads it, with the rule names of `hermes_rules`.

    Text must not begin with `{`, even after what that parser skips: white space, and the tag.
    """
    bodies = _spaced_bodies if calls.beside_content else _bodies
    lines = ["calls: body", *bodies(calls.tools, "parameters")]
    if not calls.required:
        lines += ["calls_or_text: BEFORE? calls | TEXT"]
        lines += [f"BEFORE: {as_regex(f'{WHITE_SPACE}|({WHITE_SPACE})?{_TAG}({WHITE_SPACE})?')}"]
        lines += [f"TEXT: {_but(calls, _ANY, f'{_SPACES}({_TAG}{_SPACES})?[{{]{_ANY}')}"]
    return lines


def _but(calls: Calls, pattern: str, *others: str) -> str:
    """Return a terminal's definition: what `pattern` but none of the `others` matches, and which opens no reasoning."""
    excluded = (*others, _THINKING) if calls.behind_thinking else others
    return " & ~".join(map(as_regex, (pattern, *excluded)))


def _bodies(tools: Sequence[Tool], arguments: str) -> list[str]:
    """Return rules for a call of one of the tools. Each schema is separate, so that its references stay inside it."""
    lines = [_any_body(tools)]
    for number, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "{arguments}": '
        lines += [f'body_{number}: {as_text(head)} arguments_{number} "}}"']
        lines += [f"arguments_{number}: {as_json(_schema(tool.parameters or {}))}"]
    return lines


def _spaced_bodies(tools: Sequence[Tool], arguments: str) -> list[str]:
    """Return the same, in the pieces and with the white space of JSON, which may stand in the place of a call.

    If one of them had a longer piece, it would rule out the other: the lexer takes the longest and never goes back.
    """
    lines = [_any_body(tools), f"SPACE: {as_regex(WHITE_SPACE)}"]
    for number, tool in enumerate(tools):
        name, member = as_text(json.dumps(tool.name)), as_text(json.dumps(arguments))
        pieces = ['"{"', as_text('"name"'), '":"', name, '","', member, '":"', f"arguments_{number}", '"}"']
        lines += [f"body_{number}: {' SPACE? '.join(pieces)}"]
        schema = _schema(tool.parameters or {}, {"whitespace_pattern": WHITE_SPACE})
        lines += [f"arguments_{number}: {as_json(schema)}"]
    return lines


def _any_body(tools: Sequence[Tool]) -> str:
    return f"body: {' | '.join(f'body_{number}' for number in range(len(tools)))}"


def _schema(parameters: Mapping[str, Any], options: Mapping[str, Any] = _COMPACT) -> dict[str, Any]:
    """Return the schema of the arguments; if it names properties, no others are allowed."""
    options = {**options, "json_allowed_escapes": escapes_for(parameters)}
    schema = {"type": "object", **parameters, "x-guidance": options}
    if "properties" in parameters and not any(keyword in parameters for keyword in _OPENING):
        schema["additionalProperties"] = False
    return schema
