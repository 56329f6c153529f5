"""All commands with their flags, from the table of commands and the settings classes."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from orcastream.cli.allowed import description, is_positional, own_choices
from orcastream.cli.command import Command
from orcastream.cli.commands import COMMANDS
from orcastream.cli.parse import flag

_SHORT = {"as_json": "json", "priority_class": "class"}
"""Flags with a shorter name."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command line: a command or a flag, and the flag's values if there are few."""

    text: str
    summary: str
    choices: tuple[str, ...] = ()
    takes_value: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the tree of commands, such as `/requests/list`, and the words that may follow."""

    path: str
    words: list[Word] = field(default_factory=list)


def places() -> list[Place]:
    """Return all places, the program itself first. Commands that are not installed have no flags."""
    return list(_places("", COMMANDS))


def settings_classes() -> Iterator[type[BaseSettings]]:
    """Yield the settings classes of all installed commands."""
    for _, command in _commands("", COMMANDS):
        if kind := _settings_of(command):
            yield kind


def _places(path: str, table: Mapping[str, Command]) -> Iterator[Place]:
    yield Place(path, [Word(name, command.summary) for name, command in table.items()])
    for below, command in _commands(path, table):
        kind = _settings_of(command)
        flags = {} if kind is None else kind.model_fields
        words = [Word(name, sub.summary) for name, sub in _subcommands(command).items()]
        yield Place(below, words + [word for name, one in flags.items() for word in _flags(name, one)])


def _commands(path: str, table: Mapping[str, Command]) -> Iterator[tuple[str, Command]]:
    for name, command in table.items():
        yield f"{path}/{name}", command
        yield from _commands(f"{path}/{name}", _subcommands(command))


def _subcommands(command: Command) -> Mapping[str, Command]:
    if not command.has_commands:
        return {}
    table: Mapping[str, Command] = getattr(_module(command.module), "COMMANDS", {})
    return table


def _settings_of(command: Command) -> type[BaseSettings] | None:
    if command.settings is None:
        return None
    module, _, name = command.settings.partition(":")
    kind: type[BaseSettings] | None = getattr(_module(module), name, None)
    return kind


def _module(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _flags(name: str, one: FieldInfo) -> Iterator[Word]:
    if is_positional(one):
        if choices := own_choices(one):
            yield from (Word(choice, description(one)) for choice in choices)
        return
    choices = own_choices(one)
    if choices == ("true", "false"):
        yield Word(flag(_SHORT.get(name, name)), description(one))
        if one.default is True:
            yield Word(flag(f"no_{name}"), description(one))
        return
    yield Word(flag(_SHORT.get(name, name)), description(one), choices, takes_value=True)
