"""The pass that packs the weights of linear layers, and of embeddings that share one."""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from orcastream.engine.model.passes.base import (
    ROUNDED_TOLERANCE,
    Pass,
    RowsToCheck,
    plain,
    random_inputs,
    register,
    replace,
    same,
)
from orcastream.engine.native.grouped import GroupedLinear
from orcastream.engine.native.linear import PackedLinear

_SAMPLED_IDS = 4096


class PackedWeight:
    """Represents a packed weight for models that read its type, or rows of it, outside the product or look-up."""

    def __init__(self, packed: PackedLinear, dtype: torch.dtype) -> None:
        self._packed = packed
        self.dtype = dtype
        self.device = torch.device("cpu")

    def __getitem__(self, place: Any) -> torch.Tensor:
        rows, *columns = place if isinstance(place, tuple) else (place,)
        found: torch.Tensor = self._packed.gather(torch.as_tensor(rows).unsqueeze(0))[0]
        return found[..., *columns]


class PackedLinearLayer(nn.Module):
    """Replacement for the linear layer whose name in the model was `layer`, and whose weight had this `dtype`."""

    def __init__(self, packed: PackedLinear, layer: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.packed = packed
        self.weight = PackedWeight(packed, dtype)
        self.layers, self.widths = (layer,), (packed.n,)
        self.in_features, self.out_features = packed.k, packed.n

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[..., out_features]` for x `[..., in_features]`."""
        return self.packed(x)


class PackedEmbedding(nn.Module):
    """Replacement for nn.Embedding: rows of a linear layer's weight, times `scale`."""

    def __init__(self, packed: PackedLinear, scale: torch.Tensor | None) -> None:
        super().__init__()
        self.packed = packed
        self.weight = PackedWeight(packed, packed.dtype)
        self.scale = scale
        self.num_embeddings, self.embedding_dim = packed.n, packed.k
        # Where norms have no weights (OLMo), the model would have no parameter left that tells its device and dtype.
        self.placeholder = nn.Parameter(torch.empty(0, dtype=packed.dtype), requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows `[..., embedding_dim]` for ids `[...]`."""
        rows = self.packed.gather(ids)
        return rows if self.scale is None else rows * self.scale


@register("pack_linears")
class PackLinears(Pass):
    """Packs every linear layer of a CPU model in bfloat16 or float32, and frees the original weights.

    With `int8` weights are rounded to 8 bits; an embedding that is tied to one keeps its own weight then.
    """

    def __init__(self, int8: bool = False) -> None:
        self._pack = PackedLinear.quantize if int8 else PackedLinear.pack
        self._tolerance = ROUNDED_TOLERANCE if int8 else None

    def apply(self, model: PreTrainedModel) -> int:
        """Replace layers one after another, so that at most one weight is in memory twice."""
        count = 0
        rows = RowsToCheck()
        embeddings = {module.weight: name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
        for name, module in list(model.named_modules()):
            if not _fits(module):
                continue
            weight = module.weight.T if isinstance(module, Conv1D) else module.weight
            packed = self._pack(weight, module.bias)
            kind = (type(module), packed.n, packed.k, weight.dtype, module.bias is None)
            if same(name, module, packed, random_inputs(packed.k, weight.dtype, rows.of(kind)), self._tolerance):
                rows.passed(kind)
                replace(model, name, PackedLinearLayer(packed, name, weight.dtype))
                _share(model, embeddings.get(module.weight), packed)
                count += 1
        _own_memory(model)
        return count


def packed_layers(model: nn.Module) -> list[tuple[str, PackedLinear]]:
    """Return all packed layers, each once, with the name of a module that has it."""
    found = ((name, getattr(module, "packed", None)) for name, module in model.named_modules())
    return list({id(packed): (name, packed) for name, packed in found if isinstance(packed, PackedLinear)}.values())


def packed_groups(model: nn.Module) -> list[tuple[str, GroupedLinear]]:
    """Return the layers of experts, with the name of their module."""
    return [(name, group) for name, module in model.named_modules() for group in getattr(module, "packed_groups", ())]


def packed_memory(model: nn.Module) -> list[torch.Tensor]:
    """Return the memory of all packed weights, each once."""
    groups = [group.memory for _, group in packed_groups(model) if group.memory is not None]
    return [*(packed.memory for _, packed in packed_layers(model)), *groups]


def _own_memory(model: PreTrainedModel) -> None:
    """Copy the remaining tensors: weights of one file share its mapping, all of which they would keep in memory."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def _fits(module: nn.Module) -> bool:
    return (
        type(module) in (nn.Linear, Conv1D)
        and plain(module)
        and module.weight.device.type == "cpu"
        and module.weight.dtype in (torch.bfloat16, torch.float32)
    )


def _share(model: PreTrainedModel, name: str | None, packed: PackedLinear) -> None:
    """Let the embedding with that name use the packed weight to which it is tied."""
    if name is None or packed.dtype == torch.int8:
        return
    own = model.get_submodule(name)
    ids = torch.linspace(0, packed.n - 1, _SAMPLED_IDS).long().unsqueeze(0)
    scale = getattr(own, "embed_scale", None)
    if scale is not None:
        scale = torch.as_tensor(scale, dtype=packed.dtype)
    shared = PackedEmbedding(packed, scale)
    if plain(own) and torch.equal(own(ids), shared(ids)):
        replace(model, name, shared)
