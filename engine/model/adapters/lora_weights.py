"""Reads adapter_model.safetensors: the two factors of each layer that an adapter changes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from orcastream.engine.errors import UnsupportedAdapter
from orcastream.engine.model.adapters.lora_config import LoraConfig
from orcastream.engine.model.adapters.site import Site

WEIGHTS_FILE = "adapter_model.safetensors"

_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class LayerFactors:
    """The names in the file of `down` `[rank, in_features]` and `up` `[out_features, rank]`."""

    down: str
    up: str
    rank: int


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """The weights file of one adapter, whose factors fit the sites of a model; values are read by `read`."""

    path: Path
    layers: dict[str, LayerFactors] = field(repr=False)

    @classmethod
    def open(cls, folder: Path, config: LoraConfig, sites: Iterable[Site], max_rank: int) -> "LoraWeights":
        """Check names, shapes and types without reading values. Raises UnsupportedAdapter naming what does not fit."""
        path = folder / WEIGHTS_FILE
        found = _tensors(path)
        shapes = {
            layer: (site.in_features, width)
            for site in sites
            for layer, width in zip(site.layers, site.widths, strict=True)
        }
        layers = {layer: _factors(layer, found, config, shapes, max_rank) for layer in _layers(found, shapes)}
        for layer in shapes:
            if config.wants(layer) and layer not in layers:
                raise UnsupportedAdapter(f"{path}: it lacks the weights of {layer}, which target_modules names")
        return cls(path, layers)

    def read(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Return `down` and `up` of each layer in float32. Raises UnsupportedAdapter if any value is not finite."""
        try:
            with safe_open(self.path, framework="pt") as file:
                read = {
                    layer: (file.get_tensor(each.down).float(), file.get_tensor(each.up).float())
                    for layer, each in self.layers.items()
                }
        except (OSError, SafetensorError) as error:
            raise UnsupportedAdapter(f"{self.path}: {error}") from error
        for layer, factors in read.items():
            if not all(bool(factor.isfinite().all()) for factor in factors):
                raise UnsupportedAdapter(f"{self.path}: the weights of {layer} are not all finite")
        return read


def _tensors(path: Path) -> dict[str, tuple[list[int], str]]:
    """Return shape and type of each tensor by name."""
    if not path.exists():
        raise UnsupportedAdapter(f"{path}: there is no such file (adapter_model.bin is never read)")
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return {name: (each.get_shape(), each.get_dtype()) for name, each in slices.items()}
    except (OSError, SafetensorError) as error:
        raise UnsupportedAdapter(f"{path}: {error}") from error


def _layers(found: dict[str, tuple[list[int], str]], shapes: dict[str, tuple[int, int]]) -> list[str]:
    """Return the names of the layers that the file's tensors belong to."""
    layers: dict[str, None] = {}
    for name in found:
        layer = next((name[len(_PREFIX) : -len(end)] for end in (_DOWN, _UP) if name.endswith(end)), None)
        if layer is None or not name.startswith(_PREFIX):
            raise UnsupportedAdapter(f"{name}: allowed: {_PREFIX}LAYER{_DOWN} and {_PREFIX}LAYER{_UP}")
        if layer not in shapes:
            kinds = sorted({each.rpartition(".")[2] for each in shapes})
            raise UnsupportedAdapter(
                f"{layer}: not a linear layer of this model that every token passes through once; allowed: layers "
                f"named {', '.join(kinds)}"
            )
        layers[layer] = None
    if not layers:
        raise UnsupportedAdapter("the adapter changes no layer")
    return list(layers)


def _factors(
    layer: str,
    found: dict[str, tuple[list[int], str]],
    config: LoraConfig,
    shapes: dict[str, tuple[int, int]],
    max_rank: int,
) -> LayerFactors:
    rank, (in_features, out_features) = config.rank_of(layer), shapes[layer]
    if rank > max_rank:
        raise UnsupportedAdapter(f"r: got {rank} for {layer}, allowed: at most max_adapter_rank, which is {max_rank}")
    factors = LayerFactors(f"{_PREFIX}{layer}{_DOWN}", f"{_PREFIX}{layer}{_UP}", rank)
    for name, wanted in ((factors.down, [rank, in_features]), (factors.up, [out_features, rank])):
        if name not in found:
            raise UnsupportedAdapter(f"{name}: it is missing")
        shape, dtype = found[name]
        if shape != wanted:
            raise UnsupportedAdapter(f"{name}: got the shape {shape}, allowed: {wanted}")
        if dtype not in _FLOATS:
            raise UnsupportedAdapter(f"{name}: got {dtype}, allowed: {', '.join(_FLOATS)}")
    return factors
