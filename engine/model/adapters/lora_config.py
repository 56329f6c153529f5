"""Reads adapter_config.json as PEFT writes it for LoRA; refuses settings that would change the result."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from sys import float_info
from typing import Any, TypeVar

from orcastream.engine.errors import UnsupportedAdapter

CONFIG_FILE = "adapter_config.json"

Number = TypeVar("Number", int, float)

_SAYS_NOTHING = {
    *("auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "peft_version", "lora_dropout"),
    *("fan_in_fan_out", "exclude_modules", "layers_to_transform", "layers_pattern", "megatron_core"),
    *("qalora_group_size", "eva_config"),
}
"""Fields that do not change what an adapter computes: training, merging, the choice of its layers."""
_INITIALIZED = (True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that keep the base model's weights; the others train against changed ones."""


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Ranks and scales by layer name, and the layers that the adapter changes."""

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    targets: tuple[str, ...] | None
    """Name suffixes of all layers that the adapter changes; None if the configuration gives no plain list."""

    @classmethod
    def read(cls, folder: Path) -> "LoraConfig":
        """Read the configuration in `folder`. Raises UnsupportedAdapter naming an invalid or unsupported field."""
        fields = _fields(folder / CONFIG_FILE)
        _refuse_other_kinds(fields)
        targets = fields.pop("target_modules", None)
        some_layers = fields.get("layers_to_transform") is not None or bool(fields.get("exclude_modules"))
        config = cls(
            rank=_rank("r", fields.pop("r", 8)),
            alpha=_number("lora_alpha", fields.pop("lora_alpha", 8)),
            use_rslora=_flag("use_rslora", fields.pop("use_rslora", False)),
            rank_pattern=_pattern("rank_pattern", fields.pop("rank_pattern", None), _rank),
            alpha_pattern=_pattern("alpha_pattern", fields.pop("alpha_pattern", None), _number),
            targets=tuple(map(str, targets)) if isinstance(targets, list) and not some_layers else None,
        )
        for name, value in fields.items():
            if name not in _SAYS_NOTHING and value not in (None, False, [], {}):
                raise UnsupportedAdapter(f"{name}: got {value!r}, allowed: nothing (it is not computed here)")
        return config

    def rank_of(self, layer: str) -> int:
        """Return the rank of the layer with that name."""
        return next(_matching(self.rank_pattern, layer), self.rank)

    def scale_of(self, layer: str) -> float:
        """Return the factor of the layer's product."""
        rank, alpha = self.rank_of(layer), next(_matching(self.alpha_pattern, layer), self.alpha)
        return alpha / (sqrt(rank) if self.use_rslora else rank)

    def wants(self, layer: str) -> bool:
        """Whether the configuration names that layer as changed."""
        return any(layer == target or layer.endswith(f".{target}") for target in self.targets or ())


def _fields(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedAdapter(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise UnsupportedAdapter(f"{path}: got {type(content).__name__}, allowed: one JSON object")
    return content


def _refuse_other_kinds(fields: dict[str, Any]) -> None:
    """Refuse adapters other than plain LoRA; removes the checked fields from `fields`."""
    for name, allowed in (
        ("peft_type", ("LORA",)),
        ("task_type", ("CAUSAL_LM", None)),
        ("bias", ("none",)),
        ("init_lora_weights", _INITIALIZED),
    ):
        value = fields.pop(name, allowed[0])
        if value not in allowed:
            raise UnsupportedAdapter(f"{name}: got {value!r}, allowed: {', '.join(map(str, allowed))}")


def _rank(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnsupportedAdapter(f"{name}: got {value!r}, allowed: an integer of at least 1")
    return value


def _number(name: str, value: object) -> float:
    # An integer may be too large for `isfinite`.
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= float_info.max:
        raise UnsupportedAdapter(f"{name}: got {value!r}, allowed: a number")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UnsupportedAdapter(f"{name}: got {value!r}, allowed: true, false")
    return value


def _pattern(name: str, value: object, checked: Any) -> dict[str, Any]:
    """Return values by regular expressions for the ends of names."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnsupportedAdapter(f"{name}: got {value!r}, allowed: an object of names and numbers")
    for key in value:
        try:
            re.compile(key)
        except re.error as error:
            raise UnsupportedAdapter(f"{name}: got {key!r}, allowed: a regular expression ({error})") from error
    return {key: checked(f"{name}.{key}", each) for key, each in value.items()}


def _matching(pattern: Mapping[str, Number], layer: str) -> Iterator[Number]:
    """Yield the values of the expressions that the name, or its end after a dot, matches."""
    return (value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", layer))
