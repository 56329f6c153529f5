"""Environment variables of settings, and those that look like one and are none: somebody would never know."""

import os
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from dotenv import dotenv_values
from dotenv.parser import Original, parse_stream
from pydantic_settings import BaseSettings

from orcastream.cli.errors import UserError

_PREFIX: Final = "ORCASTREAM_"
_ALIKE: Final = 0.8
"""Of 1, how much two names have in common when one of them may be meant for the other."""


def variable(kind: type[BaseSettings], name: str) -> str:
    """The environment variable of a field."""
    return f"{kind.model_config.get('env_prefix', '')}{name}".upper()


def check_env_file(kind: type[BaseSettings]) -> None:
    """UserError where the .env file of a settings class cannot be read, or has a line that is none of its kind.

    What the line says is not told: it may be a secret.
    """
    env_file = kind.model_config.get("env_file")
    if not isinstance(env_file, str) or not os.path.isfile(env_file):
        return
    try:
        with open(env_file, encoding="utf-8") as file:
            wrong = [_line(part.original) for part in parse_stream(file) if part.error]
    except OSError as error:
        raise UserError(f"{env_file}: allowed: a file that can be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{env_file}, line {line}: got bytes that are no UTF-8, allowed: UTF-8 text") from None
    if wrong:
        where = ", ".join(map(str, wrong))
        raise UserError(f"{env_file}, line {where}: got what is no line, allowed: NAME=VALUE, a comment, or nothing")


def _line(statement: Original) -> int:
    """Where it begins: dotenv counts the empty lines before it as its own."""
    text = statement.string
    return statement.line + text[: len(text) - len(text.lstrip())].count("\n")


def mistyped(kind: type[BaseSettings]) -> Iterator[tuple[str, str]]:
    """Each, and the variable that may be meant. Names of other commands' settings are no mistakes: processes share
    environments. Neither are names like no setting's, such as those that Kubernetes makes of services.
    """
    env_file = kind.model_config.get("env_file")
    names = {*os.environ, *(dotenv_values(env_file) if isinstance(env_file, str) else ())}
    given = {name.upper() for name in names if name.upper().startswith(_PREFIX)}
    unknown = given - {variable(kind, name) for name in kind.model_fields}
    if not unknown:
        return
    from orcastream.cli.completion.tree import settings_classes

    known = {variable(each, name) for each in (kind, *settings_classes()) for name in each.model_fields}
    ends = [name.removeprefix(_PREFIX) for name in known]
    for name in sorted(unknown - known):
        for meant in get_close_matches(name.removeprefix(_PREFIX), ends, n=1, cutoff=_ALIKE):
            yield name, _PREFIX + meant
