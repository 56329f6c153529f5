"""The sites where adapters can change a model: its linear layers, as they are computed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from orcastream.engine.model.passes.merge_projections import MergedLinear
from orcastream.engine.model.passes.pack_linears import PackedLinearLayer

_PROBE_TOKENS = 3


@dataclass(frozen=True, slots=True)
class Site:
    """One product of a forward pass: a linear layer, or several with the same input, side by side.

    `layers` are their names in the model as loaded, in the order of the product's columns; layer i has `widths[i]`
    columns. The product is called once per pass, with `[1, num_tokens, in_features]` or `[num_tokens, in_features]`.
    """

    module: nn.Module
    layers: tuple[str, ...]
    widths: tuple[int, ...]
    in_features: int

    @property
    def name(self) -> str:
        """The name of the first layer."""
        return self.layers[0]

    @property
    def is_packed(self) -> bool:
        """Whether the compiled operators compute it."""
        return isinstance(self.module, MergedLinear | PackedLinearLayer)

    @property
    def device(self) -> torch.device:
        """The device that computes it."""
        if self.is_packed:
            return torch.device("cpu")
        weight = self.module.weight
        assert isinstance(weight, torch.Tensor)
        return weight.device


def find_sites(model: PreTrainedModel, probe: Callable[[int], None]) -> list[Site]:
    """Return the sites that every token of a flat batch passes through once; `probe` runs a forward pass of n tokens.

    This excludes a head that computes only some rows, experts, which get only some tokens, in an order of their own,
    and layers whose weights are used without a call.
    """
    candidates = list(_candidates(model))
    calls: dict[nn.Module, list[Sequence[int]]] = {site.module: [] for site in candidates}

    def note(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        calls[module].append(arguments[0].shape)

    handles = [site.module.register_forward_pre_hook(note) for site in candidates]
    try:
        probe(_PROBE_TOKENS)
    finally:
        for handle in handles:
            handle.remove()
    return [
        site
        for site in candidates
        if calls[site.module] == [(1, _PROBE_TOKENS, site.in_features)]
        or (calls[site.module] == [(_PROBE_TOKENS, site.in_features)] and not _is_in_inner_list(model, site))
    ]


def _is_in_inner_list(model: PreTrainedModel, site: Site) -> bool:
    """Whether it belongs to one of several modules of the same layer, such as experts."""
    parts = site.name.split(".")
    lists = [model.get_submodule(".".join(parts[:end])) for end in range(1, len(parts))]
    return sum(isinstance(each, nn.ModuleList) for each in lists) > 1


def _candidates(model: PreTrainedModel) -> Iterator[Site]:
    for name, module in model.named_modules():
        if isinstance(module, MergedLinear | PackedLinearLayer):
            yield Site(module, module.layers, module.widths, module.packed.k)
        elif type(module) is nn.Linear:
            yield Site(module, (name,), (module.out_features,), module.in_features)
        elif type(module) is Conv1D:
            in_features, out_features = module.weight.shape
            yield Site(module, (name,), (out_features,), in_features)
