"""The adapters of one engine: loaded for its model, and found by the numbers in its batches."""

from collections.abc import Callable, Mapping
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
from transformers import PreTrainedModel

from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.batch.transfer import all_copied
from orcastream.engine.config import EngineConfig
from orcastream.engine.errors import UnsupportedAdapter
from orcastream.engine.model.adapters.adapter import Adapter, Factors, LowRank
from orcastream.engine.model.adapters.adapter_rows import AdapterRows, let_modules_add
from orcastream.engine.model.adapters.lora_config import LoraConfig
from orcastream.engine.model.adapters.lora_weights import LoraWeights
from orcastream.engine.model.adapters.site import find_sites

if TYPE_CHECKING:
    from orcastream.engine.model.runner import ModelRunner


class Adapters:
    """Reads adapters, from any thread; all other methods are for the thread that computes."""

    def __init__(
        self, model: PreTrainedModel, probe: Callable[[int], None], *, max_adapters: int, max_rank: int
    ) -> None:
        """`probe` runs a forward pass of that many tokens. Up to `max_adapters` of up to `max_rank` are in memory."""
        self.max_rank = max_rank
        self._max_adapters = max_adapters
        self._dtype = model.dtype
        self._sites = find_sites(model, probe)
        self._numbers = count()
        self._known: WeakValueDictionary[int, Adapter] = WeakValueDictionary()
        let_modules_add(self._sites, self)

    @classmethod
    def of(cls, config: EngineConfig, runner: "ModelRunner") -> "Adapters | None":
        """Return the adapters of the model that `runner` computes; None if `max_adapters` is 0."""
        if not config.max_adapters:
            return None
        return cls(runner.model, runner.probe, max_adapters=config.max_adapters, max_rank=config.max_adapter_rank)

    def __contains__(self, adapter: Adapter) -> bool:
        return self._known.get(adapter.number) is adapter

    @property
    def most_bytes(self) -> int:
        """Memory of `max_adapters` adapters of the largest size, in bytes."""
        one: int = sum(
            len(site.layers) * self.max_rank * (site.in_features + sum(site.widths)) * self._dtype.itemsize
            for site in self._sites
        )
        return self._max_adapters * one

    def check(self, folder: Path) -> None:
        """Raise UnsupportedAdapter if `read` would refuse the adapter, as far as can be told without reading values."""
        self._open(folder)

    def read(self, name: str, folder: Path) -> Adapter:
        """Read the adapter in `folder`, as PEFT saved it. Raises UnsupportedAdapter with the reason."""
        config, weights = self._open(folder)
        factors = weights.read()
        changes = {
            site.name: LowRank.of(site, factors, config.scale_of, self._dtype)
            for site in self._sites
            if any(layer in factors for layer in site.layers)
        }
        adapter = Adapter(name, next(self._numbers), _digest(config, factors), changes)
        self._known[adapter.number] = adapter
        return adapter

    def _open(self, folder: Path) -> tuple[LoraConfig, LoraWeights]:
        try:
            config = LoraConfig.read(folder)
            return config, LoraWeights.open(folder, config, self._sites, self.max_rank)
        except UnsupportedAdapter as error:
            reason = error.reason
            raise UnsupportedAdapter(reason if reason.startswith(str(folder)) else f"{folder}: {reason}") from error

    def rows(self, batch: FlatBatch) -> list[AdapterRows]:
        """Return the rows of each adapter of `batch`, whose requests keep the adapters in memory."""
        if batch.adapters is None:
            return []
        of_token = np.repeat(batch.adapters, np.diff(batch.offsets))
        numbers = [number for number in np.unique(batch.adapters).tolist() if number >= 0]
        rows = [np.flatnonzero(of_token == number) for number in numbers]
        on_device = all_copied(rows, batch.device)
        return [
            AdapterRows(self._known[n], each, there) for n, each, there in zip(numbers, rows, on_device, strict=True)
        ]


def _digest(config: LoraConfig, factors: Mapping[str, Factors]) -> bytes:
    """Return a digest of what was read: the files may be replaced at any time."""
    digest = sha256()
    for layer, (down, up) in sorted(factors.items()):
        digest.update(f"{layer} {config.scale_of(layer)} {len(down)} ".encode())
        for factor in (down, up):
            digest.update(factor.contiguous().numpy().data)
    return digest.digest()
