"""The pass that computes RMSNorm in one pass over memory."""

import torch
from torch import nn
from transformers import PreTrainedModel

from orcastream.engine.model.decoder_model import ATTRIBUTE
from orcastream.engine.model.passes.base import Pass, RowsToCheck, plain, random_inputs, register, replace, same
from orcastream.engine.native.elementwise import rms_norm

_EPSILONS = ("variance_epsilon", "eps", "epsilon", "norm_eps")


class FusedRMSNorm(nn.Module):
    """Replacement for an RMSNorm; `factor`, float32, multiplies the normalized values."""

    def __init__(self, weight: nn.Parameter, factor: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps
        self._factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize x `[..., width]` over the last dimension."""
        if x.device.type == "cpu":
            return rms_norm(x, self._factor, self.eps)
        from orcastream.engine.model.triton.norm import add_norm

        return add_norm(x.reshape(-1, x.shape[-1]), None, self._factor, self.eps).view(x.shape)


@register("fuse_norm")
class FuseNorm(Pass):
    """Fuses every module with RMSNorm in its class name, whether it multiplies by w or by 1 + w."""

    def apply(self, model: PreTrainedModel) -> int:
        """Replace the modules that compute the same as a fused one; none if a GPU computes a whole decoder without."""
        if model.device.type != "cpu" and hasattr(model, ATTRIBUTE):
            return 0
        rows = RowsToCheck()
        return sum(_fuse(model, name, module, rows) for name, module in list(model.named_modules()))


def _fuse(model: PreTrainedModel, name: str, module: nn.Module, rows: RowsToCheck) -> bool:
    weight = getattr(module, "weight", None)
    eps = next((value for at in _EPSILONS if isinstance(value := getattr(module, at, None), float)), None)
    if "RMSNorm" not in type(module).__name__ or not plain(module) or eps is None:
        return False
    if weight is None or weight.dim() != 1 or weight.dtype not in _DTYPES.get(weight.device.type, ()):
        return False
    kind = (type(module), weight.shape, weight.dtype, eps)
    inputs = [each.to(weight.device) for each in random_inputs(weight.shape[0], weight.dtype, rows.of(kind))]
    expected = module(inputs[0]).float()
    for factor in (weight.float().clone(), 1 + weight.float()):
        fused = FusedRMSNorm(weight, factor, eps)
        if torch.allclose(expected, fused(inputs[0]).float(), rtol=0.02, atol=1e-3):
            if not same(name, module, fused, inputs):
                return False
            rows.passed(kind)
            replace(model, name, fused)
            return True
    return False


_DTYPES = {"cpu": (torch.bfloat16, torch.float32), "cuda": (torch.bfloat16, torch.float16, torch.float32)}
