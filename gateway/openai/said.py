"""What an assistant said, as the fields of a chat's message or delta."""

from collections.abc import Sequence

from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.parts import Call, Part
from orcastream.text.answer_parser import Reasoning


def said(parts: Sequence[Part], *, in_chunk: bool = False) -> Json:
    """`reasoning_content`, `content` and `tool_calls`, those that there are; calls of a chunk tell their numbers."""
    reasoning = "".join([part.text for part in parts if isinstance(part, Reasoning)])
    content = "".join([part for part in parts if isinstance(part, str)])
    calls = [_call(part, in_chunk=in_chunk) for part in parts if isinstance(part, Call)]
    fields = {"reasoning_content": reasoning, "content": content, "tool_calls": calls}
    return {name: value for name, value in fields.items() if value}


def _call(call: Call, *, in_chunk: bool) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    told = {"id": call.id, "type": "function", "function": function}
    return {"index": call.number, **told} if in_chunk else told
