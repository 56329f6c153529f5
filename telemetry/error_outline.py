"""Errors reduced to what may be logged: where they were raised and their type, without the message.

The message of an unexpected error can quote a value, and that can be part of a prompt or an answer.
"""

import traceback
from collections.abc import Iterator

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def outline(error: BaseException) -> str:
    """Return a traceback with all causes and group members, without their messages and without a final line break."""
    return "".join(_parts(error, set())).rstrip("\n")


def _parts(error: BaseException, told: set[int]) -> Iterator[str]:
    if id(error) in told:
        return
    told.add(id(error))
    before, link = error.__cause__, _CAUSED
    if before is None and not error.__suppress_context__:
        before, link = error.__context__, _DURING
    if before is not None and id(before) not in told:
        yield from _parts(before, told)
        yield link
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_tb(error.__traceback__)
    yield f"{type_name(error)}{_reason(error)}\n"
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _parts(member, told)


def type_name(error: BaseException) -> str:
    """Return the type's name as in tracebacks."""
    name, module = type(error).__qualname__, type(error).__module__
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def _reason(error: BaseException) -> str:
    """Return the operating system's message, which cannot quote a prompt."""
    return f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
