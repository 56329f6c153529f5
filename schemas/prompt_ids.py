"""The token ids of a prompt: how they are checked, and packed as one binary."""

import sys
from array import array
from typing import Annotated, Any

from pydantic import FailFast, Field, ValidatorFunctionWrapHandler, WrapValidator

from orcastream.schemas.limits import MAX_PROMPT_TOKENS
from orcastream.schemas.sampling import TokenId

_ID_TYPE = "I"
"""The array type for numbers from 0 to MAX_TOKEN_ID (32 bits); it accepts no others."""


def _token_ids(prompt: object, validate: ValidatorFunctionWrapHandler) -> object:
    """Parse prompt ids: an array, or one binary of little-endian uint32 (msgpack only).

    A long prompt is checked as a whole; `validate` checks each id only after that fails, to say which one is wrong.
    """
    if isinstance(prompt, bytes):
        if len(prompt) % 4:
            raise ValueError("a binary prompt is little-endian uint32: its length must be a multiple of 4 bytes")
        ids = array(_ID_TYPE, prompt)
        if sys.byteorder == "big":
            ids.byteswap()
        prompt = tuple(ids)
        if 0 < len(prompt) <= MAX_PROMPT_TOKENS:
            return prompt  # an array of that type holds only valid ids
    elif isinstance(prompt, list):
        prompt = tuple(prompt)
    return prompt if isinstance(prompt, tuple) and _are_ids(prompt) else validate(prompt)


def _are_ids(prompt: tuple[Any, ...]) -> bool:
    if not 0 < len(prompt) <= MAX_PROMPT_TOKENS or set(map(type, prompt)) != {int}:
        return False
    try:
        array(_ID_TYPE, prompt)
    except OverflowError:
        return False
    return True


PromptIds = Annotated[
    tuple[TokenId, ...], FailFast(), WrapValidator(_token_ids), Field(min_length=1, max_length=MAX_PROMPT_TOKENS)
]


def pack_ids(ids: tuple[int, ...]) -> bytes:
    """Return the binary form of a checked prompt."""
    packed = array(_ID_TYPE, ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
