"""A mixture of experts as the compiled decoder takes it."""

import ctypes

import numpy as np
import torch

from orcastream.engine.model.decoder_model import Mixture, Router, SharedExpert
from orcastream.engine.native import mixture as native
from orcastream.engine.native.formats import FORMATS
from orcastream.engine.native.linear import PackedLinear


class CompiledMixture:
    """The structure of a mixture for rows in `dtype`, and the arrays to which it refers."""

    def __init__(self, mixture: Mixture[PackedLinear], dtype: torch.dtype) -> None:
        self._mixture = mixture
        parts = mixture.gate_up, mixture.down
        self._parts = [np.array([each.address for each in part], np.uint64) for part in parts]
        self._structure = native.Mixture(
            mixture.router.scores.address,
            *(part.ctypes.data for part in self._parts),
            _routing(mixture.router, len(mixture.gate_up)),
            mixture.gate.structure,
            _shared(mixture.shared),
            FORMATS[torch.float32 if mixture.router.in_float32 else dtype],
        )
        self.address = ctypes.addressof(self._structure)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the mixture yields for x `[rows, hidden]`, contiguous."""
        return native.mixture(self.address, x)


def _routing(router: Router[PackedLinear], num_experts: int) -> native.Routing:
    return native.Routing(
        correction=None if router.correction is None else router.correction.data_ptr(),
        num_experts=num_experts,
        choices=router.choices,
        groups=router.groups,
        chosen_groups=router.chosen_groups,
        factor=router.factor,
        least_sum=router.least_sum,
        scoring=router.scoring,
        normalizes=router.normalizes,
    )


def _shared(shared: SharedExpert[PackedLinear] | None) -> native.SharedExpert:
    if shared is None:
        return native.SharedExpert()
    return native.SharedExpert(
        gate_up=shared.mlp.gate_up.address,
        down=shared.mlp.down.address,
        weight=None if shared.weight is None else shared.weight.address,
        activation=shared.activation,
    )
