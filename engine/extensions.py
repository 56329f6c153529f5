"""Policies, backends and passes by name, and those that other installed packages declare as entry points."""

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import ClassVar, Protocol, TypeVar

from orcastream.engine.errors import one_line

_log = logging.getLogger(__name__)


class _Named(Protocol):
    name: ClassVar[str]


E = TypeVar("E", bound=_Named)


def adding(registry: dict[str, type[E]], name: str) -> Callable[[type[E]], type[E]]:
    """Class decorator: enter the class into `registry` under `name`, and name it so.

    Raises ValueError if a class of another module has that name, TypeError if the class lacks a method.
    """

    def decorate(extension: type[E]) -> type[E]:
        if missing := getattr(extension, "__abstractmethods__", ()):
            raise TypeError(f"{extension.__qualname__} lacks {', '.join(sorted(missing))}")
        known = registry.get(name, extension)
        if known.__module__ != extension.__module__:
            raise ValueError(f"{name!r} is the name of {known.__module__}.{known.__qualname__}: choose another name")
        registry[name] = extension
        extension.name = name
        return extension

    return decorate


def load_extensions(group: str) -> None:
    """Import the modules that installed packages declare as entry points of `group`: they register their classes.

    One that cannot be imported is logged: a broken package must not stop a worker that does not use it.
    """
    for entry in entry_points(group=group):
        try:
            import_module(entry.module)
        except (Exception, SystemExit) as error:
            _log.warning("%s: %s is left out: %s: %s", group, entry.name, type(error).__name__, one_line(error))
