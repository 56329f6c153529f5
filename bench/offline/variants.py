"""The engine configurations that one run compares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from pydantic import ByteSize, TypeAdapter, ValidationError

from orcastream.cli.errors import UserError
from orcastream.engine import EngineConfig

OF_THE_MODEL = ("model", "dtype", "device")
"""Settings that are the same for all variants."""
_WHEN_LOADED = ("self_check", "model_passes", "weight_dtype")
"""Settings that determine a loaded model's operators and weights; only `OrcaEngine.load` uses them."""


@dataclass(frozen=True)
class EngineVariant:
    """One configuration and the name of its figures."""

    name: str
    config: EngineConfig

    @property
    def loaded_as(self) -> tuple[Any, ...]:
        """The key by which variants share one model in memory."""
        return tuple(getattr(self.config, name) for name in _WHEN_LOADED)


def read_setting(name: str, text: str) -> Any:
    """Parse the text of an EngineConfig field, such as `none`, `true` or `2GiB`. Raises UserError."""
    kinds = get_type_hints(EngineConfig)
    if name not in kinds:
        raise UserError(
            f"engine setting: got {name!r}, allowed: {', '.join(field.name for field in fields(EngineConfig))}"
        )
    if text.lower() == "none":
        return None
    kind = ByteSize if name.endswith("_memory") and not text.isdigit() else kinds[name]
    try:
        value = TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        raise UserError(f"{name}: got {text!r}, allowed: {error.errors(include_url=False)[0]['msg']}") from None
    return int(value) if isinstance(value, ByteSize) else value


def variants(base: Mapping[str, Any], policies: Sequence[str], comparisons: Sequence[str]) -> list[EngineVariant]:
    """Return one variant per policy with the settings `base`, then one per comparison with the first policy.

    A comparison is `name=value`, or several separated by commas: settings that differ from the base. Raises UserError.
    """
    found = [EngineVariant(policy, _config({**base, "policy": policy})) for policy in policies]
    if not found:
        found = [EngineVariant("base", _config(base))]
    start = {**base, "policy": policies[0]} if policies else dict(base)
    found += [EngineVariant(text, _config({**start, **_overrides(text)})) for text in comparisons]
    names = [variant.name for variant in found]
    if len(set(names)) < len(names):
        raise UserError(f"--policy, --compare: got {', '.join(names)}, allowed: each variant once")
    return found


def _overrides(text: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise UserError(f"--compare: got {text!r}, allowed: SETTING=VALUE, or several separated by commas")
        if name in OF_THE_MODEL:
            raise UserError(f"--compare: got {name!r}, allowed: settings other than {', '.join(OF_THE_MODEL)}")
        settings[name] = read_setting(name, value)
    return settings


def _config(settings: Mapping[str, Any]) -> EngineConfig:
    try:
        return EngineConfig(**settings)
    except ValueError as error:
        raise UserError(str(error)) from None
