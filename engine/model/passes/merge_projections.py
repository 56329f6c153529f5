"""The pass that merges linear layers of one module that are called with the same input."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from orcastream.engine.model.passes.base import ROWS_OF_COPY, Pass, random_inputs, register, replace, same
from orcastream.engine.model.passes.pack_linears import PackedLinearLayer
from orcastream.engine.native.linear import PANEL, PackedLinear


class MergedLinear(nn.Module):
    """Several linear layers with the same input, `layers` of the model, side by side. It caches the last result for the
    layers that are called later.

    Engines on several threads may share it: the cache is a single tuple, and another input is computed anew.
    """

    def __init__(self, packed: PackedLinear, layers: Sequence[str], widths: Sequence[int]) -> None:
        super().__init__()
        self.packed = packed
        self.layers, self.widths = tuple(layers), tuple(widths)
        self._last: tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[..., sum of widths]` for x `[..., in_features]`."""
        return self.packed(x)

    def part(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Return the output of layer `index` for x, a view of `[..., sum of widths]`."""
        last = self._last
        if last is None or last[0] is not x:
            last = x, torch.split(self(x), list(self.widths), dim=-1)
            self._last = last
        if index == len(self.widths) - 1:
            self._last = None
        return last[1][index]


class MergedLinearLayer(nn.Module):
    """Replacement for one of the merged layers."""

    def __init__(self, merged: MergedLinear, index: int) -> None:
        super().__init__()
        self.merged = merged
        self.index = index
        self.in_features, self.out_features = merged.packed.k, merged.widths[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[..., out_features]` for x `[..., in_features]`."""
        return self.merged.part(self.index, x)


@register("merge_projections")
class MergeProjections(Pass):
    """Merges query, key and value, and gate and up, found by the calls of one forward pass, whatever their names."""

    def apply(self, model: PreTrainedModel) -> int:
        """Merge the layers and free the memory of the parts."""
        return sum(_merge(model, names) for names in _groups(model))


def _groups(model: PreTrainedModel) -> Iterator[list[str]]:
    """Yield names of packed layers of one parent that were called with the same tensor, in call order."""
    calls: list[tuple[str, torch.Tensor]] = []
    handles = [
        module.register_forward_pre_hook(lambda _, arguments, name=name: calls.append((name, arguments[0])))
        for name, module in model.named_modules()
        if isinstance(module, PackedLinearLayer)
    ]
    try:
        ids = torch.zeros(1, 2, dtype=torch.long)
        with torch.inference_mode():
            model(input_ids=ids, position_ids=torch.arange(2).unsqueeze(0), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    names = [name for name, _ in calls]
    groups: dict[tuple[str, int], list[str]] = {}
    for name, x in calls:
        if names.count(name) == 1:
            groups.setdefault((name.rpartition(".")[0], id(x)), []).append(name)
    yield from (group for group in groups.values() if len(group) > 1)


def _merge(model: PreTrainedModel, names: list[str]) -> int:
    parts = [model.get_submodule(name).packed for name in names]
    if any(part.n % PANEL for part in parts[:-1]) or len({(part.k, part.dtype) for part in parts}) > 1:
        return 0
    merged = MergedLinear(PackedLinear.merge(parts), names, [part.n for part in parts])
    inputs = list(random_inputs(merged.packed.k, model.dtype, [ROWS_OF_COPY]))  # a list: each is computed once
    for index, (name, part) in enumerate(zip(names, parts, strict=True)):
        if not same(name, part, MergedLinearLayer(merged, index), inputs):
            return 0
    for index, name in enumerate(names):
        replace(model, name, MergedLinearLayer(merged, index))
    return len(names)
