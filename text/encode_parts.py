"""Encodes texts on all cores, without the interpreter lock."""

import os
from collections.abc import Sequence
from typing import Any

_IN_THREADS = "TOKENIZERS_PARALLELISM"
"""The variable by which the package tokenizers decides, at each call, whether to use its threads."""


def encode_parts(backend: Any, parts: Sequence[str], *, add_special_tokens: bool = False) -> list[Any]:
    """Return the encodings of `parts`, without each token's position in the text.

    If the host refuses the tokenizer its threads, it never gets any in this process, and encodes one part after the
    other.
    """
    try:
        return list(backend.encode_batch_fast(parts, add_special_tokens=add_special_tokens))
    except BaseException as error:  # a panic is no Exception
        if type(error).__name__ != "PanicException" or "thread pool" not in str(error):
            raise
    os.environ[_IN_THREADS] = "false"
    return list(backend.encode_batch_fast(parts, add_special_tokens=add_special_tokens))
