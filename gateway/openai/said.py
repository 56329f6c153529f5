"""An assistant's output as the fields of a chat's message or delta."""

from collections.abc import Sequence
from itertools import groupby

from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.parts import Arguments, Call, Part
from orcastream.text.answer_parser import Reasoning


def said(parts: Sequence[Part], *, in_chunk: bool = False) -> Json:
    """Return the non-empty ones of `reasoning_content`, `content` and `tool_calls`; calls in a chunk have an index.

    A call that began in an earlier chunk contains only the added arguments.
    """
    reasoning = "".join([part.text for part in parts if isinstance(part, Reasoning)])
    content = "".join([part for part in parts if isinstance(part, str)])
    of_calls = groupby([part for part in parts if isinstance(part, Call | Arguments)], lambda part: part.number)
    calls = [{**({"index": number} if in_chunk else {}), **_call(list(own))} for number, own in of_calls]
    fields = {"reasoning_content": reasoning, "content": content, "tool_calls": calls}
    return {name: value for name, value in fields.items() if value}


def _call(parts: Sequence[Call | Arguments]) -> Json:
    """Return one call from its parts, in order."""
    first = parts[0]
    arguments = {"arguments": "".join([part.text for part in parts if isinstance(part, Arguments)])}
    if not isinstance(first, Call):
        return {"function": arguments}
    return {"id": first.id, "type": "function", "function": {"name": first.name, **arguments}}
