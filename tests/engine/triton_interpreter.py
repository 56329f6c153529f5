"""Triton's interpreter, made cheaper: it takes half of its time to look up what is always the same."""

from collections.abc import Callable
from functools import cache
from typing import Any


def look_up_once() -> None:
    """From here on, search each part of the language once for what the interpreter replaces there, not in each launch.

    The same for numpy's types.

    Raises ImportError if Triton is not installed.
    """
    from triton.runtime import interpreter

    find = _numpy_type()
    found = cache(find)

    def replace(part: Any, builder: object, scope: object) -> None:
        names = _builtins(part)
        if names and not interpreter.tl.core.is_builtin(getattr(part, names[0])):
            return  # in a call from a kernel, whose launch has replaced them all
        for name in names:
            interpreter._patch_attr(part, name, getattr(part, name), builder, scope)

    def numpy_type(kind: Any) -> Any:
        return find(kind) if kind.scalar.is_ptr() else found(kind.scalar)  # only scalars have hashes

    interpreter._patch_builtin = replace
    interpreter._get_np_dtype = numpy_type


@cache
def _numpy_type() -> Callable[[Any], Any]:
    """Return the interpreter's own function, which builds a table of all types in each call."""
    from triton.runtime import interpreter

    return interpreter._get_np_dtype


@cache
def _builtins(part: Any) -> list[str]:
    """Return the names in a module or class of the language; called first in a launch, before anything is replaced."""
    from triton.language.core import is_builtin

    return [name for name in dir(part) if is_builtin(getattr(part, name, None))]
