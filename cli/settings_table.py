"""The README's tables of all settings, generated from their classes: `python -m orcastream.cli.settings_table`."""

from collections.abc import Iterator

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from orcastream.broker.settings import BrokerSettings
from orcastream.cli.allowed import allowed_values, description, is_positional, unit
from orcastream.cli.console.settings import TopSettings
from orcastream.cli.jobs.settings import SubmitSettings
from orcastream.cli.parse import flag
from orcastream.cli.settings import ChatSettings, TokenizeSettings
from orcastream.cli.up_settings import UpOptions, default_data_dir
from orcastream.cli.variables import has_variable, variable
from orcastream.gateway.settings import GatewaySettings
from orcastream.telemetry.settings import LogSettings
from orcastream.worker.settings import WorkerSettings

GROUPS: tuple[tuple[str, type[BaseSettings]], ...] = (
    ("Gateway and worker", BrokerSettings),
    ("Logs of both", LogSettings),
    ("Gateway", GatewaySettings),
    ("Worker", WorkerSettings),
    ("`orcastream up`: all of the above, and", UpOptions),
    ("`orcastream chat`", ChatSettings),
    ("`orcastream top`: those of Redis and the model, and", TopSettings),
    ("`orcastream submit`: those of Redis and the model, and", SubmitSettings),
    ("`orcastream tokenize`", TokenizeSettings),
)

_SHARED = (BrokerSettings, LogSettings)

_HEAD = "| setting | variable | flag | default | allowed | description |\n|---|---|---|---|---|---|"


def settings_table() -> str:
    """Return one Markdown table per group of settings; shared settings appear only in the group that comes first."""
    return "\n\n".join(f"**{title}**\n\n{_HEAD}\n" + "\n".join(_rows(kind)) for title, kind in GROUPS)


def _rows(kind: type[BaseSettings]) -> Iterator[str]:
    inherited = {name for base in _SHARED if kind is not base and issubclass(kind, base) for name in base.model_fields}
    for name, field in kind.model_fields.items():
        if name in inherited:
            continue
        positional = is_positional(field)
        cells = (
            f"`{name}`",
            f"`{variable(kind, name)}`" if has_variable(kind, name) else "",
            f"`{name.upper()}`" if positional else f"`{flag(name)}`",
            "" if field.is_required() else _default(field),
            _allowed(field),
            description(field),
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _allowed(field: FieldInfo) -> str:
    allowed, measure = allowed_values(field) or "", unit(field)
    return f"{allowed} [{measure}]" if measure else allowed


def _default(field: FieldInfo) -> str:
    if field.default_factory is default_data_dir:
        return "`~/.local/share/orcastream`"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", (), {}):
        return "none"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"`{getattr(value, 'value', value)}`"


if __name__ == "__main__":
    print(settings_table())
