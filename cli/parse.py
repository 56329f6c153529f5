"""A command's settings from flags, environment, .env and defaults, in this order; errors in one line each."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsError

from orcastream.cli.allowed import allowed_values, is_positional, is_secret
from orcastream.cli.command import warn
from orcastream.cli.credentials import without_credentials
from orcastream.cli.errors import UserError
from orcastream.cli.variables import check_env_file, has_variable, mistyped, variable, without_effect

S = TypeVar("S", bound=BaseSettings)

_LONGEST_VALUE = 80
_WRONG_INSIDE = ("string_type", "dict_type", "list_type", "tuple_type")
"""Pydantic's error types for JSON of the wrong form for the field."""
_IN_FIELD = re.compile(r'for (?:field )?"?(\w+)"?')
_SWITCH_WITH_VALUE = re.compile(r"argument --([\w-]+)/--no-\1: ignored explicit argument '(.*)'$")


class _Arguments(CliSettingsSource[Any]):
    """The command line, whose help names the variables of those settings that have one."""

    def _get_field_env_var_names(self, field_name: str, *rest: Any) -> tuple[str, ...]:
        return (
            super()._get_field_env_var_names(field_name, *rest) if has_variable(self.settings_cls, field_name) else ()
        )


class UnusableSettings(UserError):
    """Unusable settings; each line names a field, its value and what is allowed."""


def load_settings(
    kind: type[S], arguments: Sequence[str], command: str, shortcuts: Mapping[str, str] | None = None
) -> S:
    """Return settings of `kind` for `orcastream command arguments`. Raises UnusableSettings; SystemExit after --help.

    Warns on standard error about variables that are probably mistyped, or have no effect. `shortcuts` are further names
    of flags, both without their leading dashes.
    """
    try:
        source = _Arguments(
            kind,
            cli_prog_name=f"orcastream {command}",
            cli_parse_args=list(arguments),
            cli_kebab_case=True,
            cli_implicit_flags=True,
            cli_hide_none_type=True,
            cli_avoid_json=True,
            cli_show_env_vars=True,
            cli_exit_on_error=False,
            cli_shortcuts=shortcuts,
        )
        check_env_file(kind)
        settings = kind(_cli_settings_source=source)
    except ValidationError as error:
        raise UnusableSettings(*(_complaint(kind, details) for details in error.errors(include_url=False))) from None
    except SettingsError as error:
        raise UnusableSettings(_unreadable(kind, error)) from None
    for name, field in without_effect(kind):
        warn(f"orcastream {command}", f"{name}: ignored, because only {_argument(kind, field)} sets this")
    for name, meant in mistyped(kind):
        warn(f"orcastream {command}", f"{name}: there is no such setting; did you mean {meant}?")
    return settings


def flag(name: str) -> str:
    """Return the flag of a field."""
    return "--" + name.replace("_", "-")


def _complaint(kind: type[BaseSettings], details: Any) -> str:
    if not details["loc"]:
        return _reason(details)
    name = str(details["loc"][0])
    field = kind.model_fields.get(name)
    own = details["type"] in ("value_error", "assertion_error")
    allowed = (None if own or field is None else allowed_values(field)) or _reason(details)
    if field is not None and details["type"] in _WRONG_INSIDE:
        allowed = _json_form(field)
    if details["type"] == "missing":
        return f"{_names(kind, name)}: got nothing, allowed: {allowed}"
    value = details["input"]
    if name.endswith("url") and isinstance(value, str):
        value = without_credentials(value)
    shown = "a secret" if field is not None and is_secret(field) else _shown(value)
    return f"{_names(kind, name)}: got {shown}, allowed: {allowed}"


def _names(kind: type[BaseSettings], name: str) -> str:
    places = (_argument(kind, name), *((variable(kind, name),) if has_variable(kind, name) else ()))
    return f"{name} ({', '.join(places)})"


def _argument(kind: type[BaseSettings], name: str) -> str:
    """Return how the command line gives a field."""
    field = kind.model_fields.get(name)
    return name.upper() if field is not None and is_positional(field) else flag(name)


def _reason(details: Any) -> str:
    if details["type"] == "missing":  # an empty value counts as missing
        return "a value"
    context = details.get("ctx", {})
    return str(context["error"]) if "error" in context else str(details["msg"]).removeprefix("Input should be ")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _unreadable(kind: type[BaseSettings], error: SettingsError) -> str:
    if (match := _IN_FIELD.search(str(error))) and match[1] in kind.model_fields:
        return f"{_names(kind, match[1])}: got invalid JSON, allowed: {_json_form(kind.model_fields[match[1]])}"
    if match := _SWITCH_WITH_VALUE.search(str(error)):
        name, value = match.groups()
        return (
            f"{_names(kind, name.replace('-', '_'))}: got {value!r}, allowed: --{name} or --no-{name}, without a value"
        )
    return str(error).removeprefix("error parsing CLI: ")


def _json_form(field: FieldInfo) -> str:
    return 'an object such as {"key": "value"}' if "dict" in str(field.annotation) else 'a list such as ["a", "b"]'
