"""Environment variables of settings, and those that would otherwise be ignored silently."""

import os
import stat
from collections.abc import Iterator
from difflib import get_close_matches
from typing import ClassVar, Final

from dotenv import dotenv_values
from dotenv.parser import Original, parse_stream
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from orcastream.cli.errors import UserError

_PREFIX: Final = "ORCASTREAM_"
_ALIKE: Final = 0.8
"""Similarity, of at most 1, from which one name counts as a typo of another."""


class CommandSettings(BaseSettings):
    """Settings of a command that runs once. Environment and .env can set those named in `from_environment`; the others
    are arguments only, because a variable that was set for one command must not change what another one does.
    """

    model_config = SettingsConfigDict(
        env_prefix="ORCASTREAM_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )
    from_environment: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Leave the variables of arguments out of environment and .env."""
        left_out = {variable(cls, name).lower() for name in cls.model_fields if not has_variable(cls, name)}
        for source in (env_settings, dotenv_settings):
            if isinstance(source, EnvSettingsSource):
                source.env_vars = {name: value for name, value in source.env_vars.items() if name not in left_out}
        return init_settings, env_settings, dotenv_settings


def variable(kind: type[BaseSettings], name: str) -> str:
    """Return the environment variable of a field."""
    return f"{kind.model_config.get('env_prefix', '')}{name}".upper()


def has_variable(kind: type[BaseSettings], name: str) -> bool:
    """Return whether the environment can set a field."""
    return not issubclass(kind, CommandSettings) or name in kind.from_environment


def without_effect(kind: type[BaseSettings]) -> Iterator[tuple[str, str]]:
    """Yield each given variable that is named like an argument of this command, and the field."""
    given = _given(kind)
    for name in kind.model_fields:
        if not has_variable(kind, name) and variable(kind, name) in given:
            yield variable(kind, name), name


def check_env_file(kind: type[BaseSettings]) -> None:
    """Raise UserError if the current directory or the .env file of a settings class in it cannot be used.

    An error about a line does not quote it: it may hold a secret.
    """
    env_file = kind.model_config.get("env_file")
    if not isinstance(env_file, str):
        return
    mode = _mode(env_file)
    if stat.S_ISFIFO(mode):  # processes that read it at the same time would each get a part
        raise UserError(f"{env_file}: got a named pipe, allowed: a regular file, because every process reads it anew")
    if not stat.S_ISREG(mode):
        return
    try:
        with open(env_file, encoding="utf-8") as file:
            wrong = [_line(part.original) for part in parse_stream(file) if part.error]
    except OSError as error:
        raise UserError(f"{env_file}: allowed: a file that can be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{env_file}, line {line}: got bytes that are not UTF-8, allowed: UTF-8 text") from None
    if wrong:
        where = ", ".join(map(str, wrong))
        raise UserError(f"{env_file}, line {where}: got an invalid line, allowed: NAME=VALUE, a comment, or nothing")


def _mode(env_file: str) -> int:
    """Return the file's mode, 0 if there is none. Raises UserError if the current directory is gone or closed to us."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(f"the current directory cannot be used ({error.strerror}): change to another one") from None
    try:
        return os.stat(env_file).st_mode
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise UserError(f"{env_file} in the current directory cannot be looked up: {error.strerror}") from None


def _line(statement: Original) -> int:
    """Return the line number of a statement: dotenv counts preceding empty lines as part of it."""
    text = statement.string
    return statement.line + text[: len(text) - len(text.lstrip())].count("\n")


def mistyped(kind: type[BaseSettings]) -> Iterator[tuple[str, str]]:
    """Yield each mistyped variable and the one that may be meant. Names of other commands' settings are no mistakes,
    because processes share environments; nor are names unlike any setting, such as those that Kubernetes sets.
    """
    unknown = _given(kind) - {variable(kind, name) for name in kind.model_fields}
    if not unknown:
        return
    from orcastream.cli.completion.tree import settings_classes

    settings = [(each, name) for each in (kind, *settings_classes()) for name in each.model_fields]
    known = {variable(each, name) for each, name in settings}
    ends = {variable(each, name).removeprefix(_PREFIX) for each, name in settings if has_variable(each, name)}
    for name in sorted(unknown - known):
        for meant in get_close_matches(name.removeprefix(_PREFIX), ends, n=1, cutoff=_ALIKE):
            yield name, _PREFIX + meant


def _given(kind: type[BaseSettings]) -> set[str]:
    """Return our variables in the environment and in .env, in capitals."""
    env_file = kind.model_config.get("env_file")
    names = {*os.environ, *(dotenv_values(env_file) if isinstance(env_file, str) else ())}
    return {name.upper() for name in names if name.upper().startswith(_PREFIX)}
