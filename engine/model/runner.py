"""Runs a transformers model on flat batches over a paged KV cache."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from orcastream.engine.attention import AttentionBackend
from orcastream.engine.attention.interface import IMPLEMENTATION, AttentionContext
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.errors import UnsupportedModel
from orcastream.engine.kv.layout import LayerGroup, LayerShape
from orcastream.engine.kv.store import LayerCache
from orcastream.engine.model.adapters.adapter_rows import adding
from orcastream.engine.model.adapters.adapters import Adapters
from orcastream.engine.model.compiled_decoder import CompiledDecoder
from orcastream.engine.model.graphs import DecodeGraphs
from orcastream.engine.model.triton_decoder import TritonDecoder
from orcastream.engine.native.maxima import RowMaxima

_CACHE_DTYPES: dict[str, torch.dtype | None] = {
    "auto": None,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


def resolve_cache_dtype(name: str) -> torch.dtype | None:
    """Return the dtype for a value of EngineConfig.kv_cache_dtype; None means the model's own."""
    return _CACHE_DTYPES[name]


def cache_dtype_name(dtype: torch.dtype) -> str:
    """Return the value of EngineConfig.kv_cache_dtype for `dtype`."""
    return next((name for name, known in _CACHE_DTYPES.items() if known is dtype), str(dtype))


class ModelRunner:
    """Runs one model: linear layers on the flat stream, attention per request (selective batching, Orca, OSDI'22).

    The attention layers are found by a probe, a forward pass in which each calls our attention once.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        backend: AttentionBackend,
        cache_dtype: torch.dtype | None = None,
        max_model_len: int | None = None,
    ) -> None:
        """`cache_dtype` None means the model's. No request exceeds `max_model_len`, by default the model's limit.

        Raises ValueError if the backend cannot store keys and values in that dtype.
        """
        self.model = model
        self.backend = backend
        self._cache_dtype = cache_dtype or model.dtype
        if self._cache_dtype not in backend.cache_dtypes:
            allowed = ", ".join(cache_dtype_name(dtype) for dtype in backend.cache_dtypes)
            raise ValueError(
                f"kv_cache_dtype: got {cache_dtype_name(self._cache_dtype)!r}, allowed with attention backend "
                f"{backend.name}: {allowed}"
            )
        self._context = AttentionContext(backend, model.dtype)
        self.graphs: DecodeGraphs | None = None
        """Graphs for decode-only iterations, if enabled."""
        self.adapters: Adapters | None = None
        """The adapters that requests may use, if enabled."""
        self.before_forward: Callable[[], None] = _nothing
        """Called when the host has prepared a forward pass and is about to release the interpreter to other threads."""
        _skip_padding_checks(model)
        self._takes_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.probe()
        self._decoder = CompiledDecoder.of(model, backend) or TritonDecoder.of(model, backend, max_model_len)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.model.device
        return device

    @property
    def is_compiled(self) -> bool:
        """Whether one call computes the whole decoder, and not its modules."""
        return self._decoder is not None

    @property
    def shapes(self) -> list[LayerShape]:
        """The shapes of the attention layers in execution order."""
        return self._context.shapes

    @property
    def layers(self) -> list[LayerCache]:
        """The cache of each layer."""
        return self._context.caches

    @property
    def cache_memory(self) -> list[torch.Tensor]:
        """All tensors of the cache."""
        return [part for layer in self.layers for part in layer.tensors]

    @property
    def cache_dtype(self) -> torch.dtype:
        """The dtype in which keys and values are stored."""
        return self._cache_dtype

    def bytes_per_block(self, layer: int, block_size: int) -> int:
        """Return the bytes of one block in one layer."""
        with torch.device("meta"):
            one = self.backend.allocate(self.shapes[layer], 1, block_size, self._cache_dtype, torch.device("meta"))
        return sum(part.nbytes for part in one.tensors)

    def allocate(self, groups: Sequence[LayerGroup], num_blocks: Sequence[int], block_size: int) -> None:
        """Allocate the tensors of the KV cache, `num_blocks` per group, and drop earlier ones."""
        group_of = {layer: index for index, group in enumerate(groups) for layer in group.layers}
        self._context.groups = [group_of[layer] for layer in range(len(self.shapes))]
        self._context.caches = []
        self._context.caches = [
            self.backend.allocate(shape, num_blocks[group_of[layer]], block_size, self._cache_dtype, self.device)
            for layer, shape in enumerate(self.shapes)
        ]

    @torch.inference_mode()
    def forward(self, batch: FlatBatch, maxima: RowMaxima | None = None) -> torch.Tensor:
        """Return logits `[len(batch.logit_rows), vocab]`; with `maxima` also those, if they cost next to nothing."""
        if self.graphs is not None and self.graphs.take(batch):
            self.before_forward()
            return self.graphs.replay(batch)
        return self.compute(batch, maxima=maxima)

    def plan(self, batch: FlatBatch) -> Any:
        """Return the attention plan of `batch`, which `compute` would otherwise make itself."""
        return self.backend.plan(batch, self._context.dtype)

    @torch.inference_mode()
    def compute(self, batch: FlatBatch, plan: Any = None, maxima: RowMaxima | None = None) -> torch.Tensor:
        """Return logits by a forward pass, with `plan` if it has been made before."""
        rows = () if self.adapters is None else self.adapters.rows(batch)
        if self._decoder is not None and self._decoder.takes(rows):
            plan = self.plan(batch) if plan is None else plan
            caches, groups = self._context.caches, self._context.groups
            return self._decoder.forward(batch, plan, caches, groups, rows, maxima=maxima, begins=self.before_forward)
        with self._context.computing(self.model, batch, plan), adding(rows):
            self.before_forward()
            return self._call(batch.input_ids, batch.position_ids, batch.logit_rows)

    def _call(self, input_ids: torch.Tensor, position_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        keep: dict[str, Any] = {"logits_to_keep": rows} if self._takes_rows else {}
        output = self.model(
            input_ids=input_ids, position_ids=position_ids, attention_mask=None, use_cache=False, **keep
        )
        logits: torch.Tensor = output.logits[0]
        return logits if self._takes_rows else logits[rows]

    @torch.inference_mode()
    def probe(self, num_tokens: int = 2, max_model_len: int = 2) -> None:
        """Find the attention layers with a flat batch of requests of `max_model_len` tokens, skipping attention.

        Raises UnsupportedModel if not all are found, or if one needs something that a flat batch does not compute.
        """
        positions = (torch.arange(num_tokens, device=self.device) % max_model_len).unsqueeze(0)
        try:
            with self._context.recording(self.model):
                self._call(torch.zeros_like(positions), positions, positions[0, :0])
        except UnsupportedModel:
            raise
        except Exception as error:
            raise UnsupportedModel(f"a flat batch does not run through the model: {error!r}") from error
        expected = self.model.config.get_text_config().num_hidden_layers
        if len(self.shapes) != expected:
            raise UnsupportedModel(
                f"{len(self.shapes)} of {expected} layers call the attention interface ({IMPLEMENTATION}); the others "
                "do not use it (alibi in the scores, linear attention, state space, own attention module)"
            )


def _skip_padding_checks(model: PreTrainedModel) -> None:
    """Let the model not look for padding, which a flat batch never has: the host would wait for the device, and no
    graph could be captured."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.warn_if_padding_and_no_attention_mask = _ignore


def _ignore(*_: Any) -> None:
    """Ignore the arguments."""


def _nothing() -> None:
    """Do nothing: the default callback."""
