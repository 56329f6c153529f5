"""Triton's interpreter, made cheaper: each launch and each call of a device function replaces Triton's language."""

from functools import cache
from typing import Any


def find_builtins_once() -> None:
    """From here on, search each part of the language once for what the interpreter replaces there, not each time.

    Raises ImportError if Triton is not installed.
    """
    from triton.runtime import interpreter

    def replace(part: Any, builder: object, scope: object) -> None:
        for name in _builtins(part):
            member = getattr(part, name)
            if interpreter.tl.core.is_builtin(member):  # not in a call from a kernel, whose launch has replaced it
                interpreter._patch_attr(part, name, member, builder, scope)

    interpreter._patch_builtin = replace


@cache
def _builtins(part: Any) -> list[str]:
    """Return the names in a module or class of the language; called first in a launch, before anything is replaced."""
    from triton.language.core import is_builtin

    return [name for name in dir(part) if is_builtin(getattr(part, name, None))]
