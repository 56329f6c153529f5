"""Parameters of OpenAI's and other servers' APIs that are not implemented, and those of their values without effect."""

from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, Final

from orcastream.gateway.errors import unsupported

_NOTHING: Final[tuple[Any, ...]] = ()

_OPENAIS: Final[dict[str, tuple[Any, ...]]] = {
    "audio": _NOTHING,
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": _NOTHING,
    "parallel_tool_calls": (True, False),
    "reasoning_effort": _NOTHING,
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": _NOTHING,
}
_OTHERS: Final[dict[str, tuple[Any, ...]]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": _NOTHING,
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "guided_decoding_backend": ("auto", "guidance"),
    "guided_whitespace_pattern": _NOTHING,
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": _NOTHING,
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "prompt_logprobs": _NOTHING,
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": _NOTHING,
    "vllm_xargs": ({},),
}
"""vLLM's parameters: its clients and load tools send them with these values."""

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType({**_OPENAIS, **_OTHERS})
"""Values without effect for each parameter, in addition to null, which has none in any known parameter."""


def drop_neutral(
    body: Mapping[str, Any], implemented: Set[str], own: Mapping[str, Sequence[Any]] | None = None
) -> dict[str, Any]:
    """Return `body` without nulls and parameters without effect. Raises ApiError naming an unimplemented one with
    effect.

    `own`: more parameters of the endpoint. Unknown parameters stay unchanged, null or not.
    """
    return without_neutral(body, implemented, {**NEUTRAL, **own} if own else NEUTRAL)


def without_neutral(
    values: Mapping[str, Any], implemented: Set[str], known: Mapping[str, Sequence[Any]], prefix: str = ""
) -> dict[str, Any]:
    """As `drop_neutral`, for an object where `known` is what is not implemented; `prefix`: of its members' paths."""
    kept = {}
    for name, value in values.items():
        if value is None and (name in implemented or name in known):
            continue
        if name in implemented or name not in known:
            kept[name] = value
            continue
        neutral = known[name]
        if not any(_same(value, one) for one in neutral):
            allowed = ", ".join(["null", *map(repr, neutral)])
            raise unsupported(prefix + name, value, f"{allowed}: the parameter is not implemented")
    return kept


def neutral_schemas(known: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the JSON schemas of parameters that are not implemented, by name."""
    return {
        name: {"anyOf": [*map(_exactly, (None, *values))], "description": "Not implemented."}
        for name, values in known.items()
    }


def _same(value: object, neutral: object) -> bool:
    """Return equality, without taking false for 0."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _exactly(value: object) -> dict[str, Any]:
    """Return the schema of one value: generators of clients know no arrays in `const`, and no flags without a type."""
    if isinstance(value, list):
        items = {"enum": value} if value else {}
        return {"type": "array", "items": items, "minItems": len(value), "maxItems": len(value)}
    if isinstance(value, dict):
        schema = {"type": "object", "maxProperties": len(value)}
        members = {"properties": {name: _exactly(each) for name, each in value.items()}, "additionalProperties": False}
        return {**schema, **members} if value else schema
    if isinstance(value, int):
        return {"type": "boolean" if isinstance(value, bool) else "integer", "const": value}
    return {"type": "null"} if value is None else {"const": value}
