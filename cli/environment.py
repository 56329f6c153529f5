"""The environment of our child processes: settings as variables, which take precedence over a .env file."""

import json
import os
import site
from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic import SecretStr
from pydantic_settings import BaseSettings

from orcastream import IMPORTED_FROM
from orcastream.cli.variables import variable


def as_environment(settings: BaseSettings, kind: type[BaseSettings]) -> dict[str, str]:
    """Return the variables from which a `kind` object reads what was set in `settings`; defaults are left out."""
    return {
        variable(kind, name): _text(value)
        for name in kind.model_fields
        if name in settings.model_fields_set and (value := getattr(settings, name, None)) is not None
    }


def import_path() -> dict[str, str]:
    """Return the variable with which a child can import us when we run from a checkout that is not installed."""
    root = str(IMPORTED_FROM)
    if root in site.getsitepackages():
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}


def _text(value: Any) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _plain(value: Any) -> Any:
    """Return a value for JSON: numbers and booleans unchanged, everything else as text."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str)) else str(value)
