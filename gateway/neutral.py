"""Parameters of OpenAI's API that are not implemented, and the values of them that ask for nothing."""

from collections.abc import Mapping, Set
from types import MappingProxyType
from typing import Any, Final

from gateway.errors import unsupported

_NOTHING: Final[tuple[Any, ...]] = ()

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "audio": _NOTHING,
        "echo": (False,),
        "frequency_penalty": (0,),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "logit_bias": ({},),
        "logprobs": (False,),
        "metadata": ({},),
        "modalities": (["text"],),
        "moderation": _NOTHING,
        "parallel_tool_calls": (True, False),
        "prediction": _NOTHING,
        "presence_penalty": (0,),
        "prompt_cache_key": _NOTHING,
        "prompt_cache_options": _NOTHING,
        "prompt_cache_retention": _NOTHING,
        "reasoning_effort": _NOTHING,
        "repetition_penalty": (1,),
        "response_format": ({"type": "text"},),
        "safety_identifier": _NOTHING,
        "service_tier": ("auto", "default"),
        "store": (False,),
        "suffix": ("",),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "top_logprobs": (0,),
        "verbosity": ("medium",),
        "web_search_options": _NOTHING,
    }
)
"""Beside null, which asks for nothing wherever a parameter is known."""


def drop_neutral(body: Mapping[str, Any], implemented: Set[str]) -> dict[str, Any]:
    """`body` without nulls and without parameters that ask for nothing; ApiError naming one that asks for something.

    What is neither `implemented` nor known here stays as it is, null or not.
    """
    kept = {}
    for name, value in body.items():
        if value is None and (name in implemented or name in NEUTRAL):
            continue
        if name not in NEUTRAL:
            kept[name] = value
            continue
        neutral = NEUTRAL[name]
        if not any(_same(value, one) for one in neutral):
            allowed = ", ".join(["null", *map(repr, neutral)])
            raise unsupported(name, value, f"{allowed}: the parameter is not implemented")
    return kept


def _same(value: object, neutral: object) -> bool:
    """Equality that does not take false for 0."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
