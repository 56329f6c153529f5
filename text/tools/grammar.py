"""How a model is made to write tool calls: a grammar for its format, made of the tools' own schemas."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orcastream.text import reasoning
from orcastream.text.grammar import WHITE_SPACE
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
"""Keywords by which a schema says itself what its properties may be called."""
_ANY: Final = "(?s:.*)"
_SPACES: Final = f"[{SPACE}]*"
_TAG: Final = re.escape(llama.TAG)
_THINKING: Final = f"{_SPACES}{reasoning.OPENS}{_ANY}"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call; `parameters` is a JSON Schema of one object, None where it may be any."""

    name: str
    parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that an answer may have.

    `required`: calls and nothing else, at least one; otherwise text may come before, between or instead of them, but
    none that opens a call and is none. `parallel`: more than one call may come, where the format has that.
    `beside_content`: content that follows a constraint, maybe JSON, may come in their place. `behind_thinking`: the
    answer may begin with thinking, which text then does not open.
    """

    tools: Sequence[Tool]
    required: bool
    parallel: bool = True
    beside_content: bool = False
    behind_thinking: bool = False


def hermes_rules(calls: Calls) -> list[str]:
    """Lark for calls as HermesParser reads them: rules `calls`, and `calls_or_text` where none is required."""
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
    """Lark for one call as LlamaParser reads it, in rules as those of `hermes_rules`.

    Text does not begin with `{`, also behind what that parser passes over: white space, and the tag.
    """
    bodies = _spaced_bodies if calls.beside_content else _bodies
    lines = ["calls: body", *bodies(calls.tools, "parameters")]
    if not calls.required:
        lines += ["calls_or_text: BEFORE? calls | TEXT"]
        lines += [f"BEFORE: {as_regex(f'{WHITE_SPACE}|({WHITE_SPACE})?{_TAG}({WHITE_SPACE})?')}"]
        lines += [f"TEXT: {_but(calls, _ANY, f'{_SPACES}({_TAG}{_SPACES})?[{{]{_ANY}')}"]
    return lines


def _but(calls: Calls, pattern: str, *others: str) -> str:
    """A terminal's definition: what `pattern` matches and the `others` do not, which is no thinking, either."""
    excluded = (*others, _THINKING) if calls.behind_thinking else others
    return " & ~".join(map(as_regex, (pattern, *excluded)))


def _bodies(tools: Sequence[Tool], arguments: str) -> list[str]:
    """Rules for a call of one of the tools. Each schema stands alone, so that its references lead into itself."""
    lines = [_any_body(tools)]
    for number, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "{arguments}": '
        lines += [f'body_{number}: {as_text(head)} arguments_{number} "}}"']
        lines += [f"arguments_{number}: {as_json(_schema(tool.parameters or {}))}"]
    return lines


def _spaced_bodies(tools: Sequence[Tool], arguments: str) -> list[str]:
    """The same in the pieces, and with the white space, that JSON is made of in the place of a call.

    A piece that is longer in one of them would rule out the other: the lexer takes the longest and never goes back.
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
    """The schema of the arguments, with no names but those it tells of, where it tells of any."""
    schema = {"type": "object", **parameters, "x-guidance": options}
    if "properties" in parameters and not any(keyword in parameters for keyword in _OPENING):
        schema["additionalProperties"] = False
    return schema
