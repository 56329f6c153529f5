"""The operators that an engine computes with."""

from dataclasses import asdict, dataclass

import torch

from orcastream.engine.native.library import instruction_set, why_unavailable


@dataclass(frozen=True, slots=True)
class Operators:
    """The choices that decide an engine's speed on a given machine.

    `compiled` is the instruction set of the compiled operators of engine/native, or `none: ` and the reason.
    """

    device: str
    dtype: str
    attention_backend: str
    compiled: str

    @classmethod
    def of(cls, device: torch.device, dtype: torch.dtype, attention_backend: str) -> "Operators":
        """Return the operators that a model of `dtype` on `device` uses."""
        return cls(str(device), str(dtype).removeprefix("torch."), attention_backend, _compiled(device))

    def as_dict(self) -> dict[str, str]:
        """Return the fields as a dict, for logs, health and results."""
        return asdict(self)


def _compiled(device: torch.device) -> str:
    if device.type != "cpu":
        return "none: they are for CPUs"
    why = why_unavailable()
    return instruction_set() if why is None else f"none: {why}"
