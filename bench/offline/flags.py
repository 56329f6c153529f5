"""Flags for the engine's settings, generated from EngineConfig: a new setting automatically gets a flag."""

import argparse
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from orcastream.bench.offline.variants import read_setting
from orcastream.cli.errors import UserError
from orcastream.engine import EngineConfig

_OWN = ("model", "policy")
"""Settings with a differently defined flag."""


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag per setting; flags that are not given are absent from the namespace."""
    group = parser.add_argument_group("engine", "settings of EngineConfig; docs/engine.md explains them")
    kinds = get_type_hints(EngineConfig)
    for field in fields(EngineConfig):
        if field.name not in _OWN:
            _add(group, field, kinds[field.name])


def engine_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the given settings."""
    names = [field.name for field in fields(EngineConfig) if field.name not in _OWN]
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def _add(group: "argparse._ArgumentGroup", field: "Field[Any]", kind: Any) -> None:
    flag = "--" + field.name.replace("_", "-")
    default = "" if field.default is MISSING else f"default {field.default}"
    options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": default}
    if kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
    elif get_origin(kind) is Literal:
        group.add_argument(flag, choices=get_args(kind), **options)
    else:
        group.add_argument(flag, type=_reader(field.name), metavar="VALUE", **options)


def _reader(name: str) -> Any:
    def read(text: str) -> Any:
        try:
            return read_setting(name, text)
        except UserError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read
