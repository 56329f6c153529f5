"""A transformers model that computes flat batches over a paged KV cache."""

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

from engine.attention import AttentionBackend, LayerShape
from engine.attention.interface import IMPLEMENTATION, AttentionContext
from engine.batch.flat_batch import FlatBatch
from engine.errors import UnsupportedModel


class ModelRunner:
    """Runs one model: linear layers on the flat stream, attention per request (selective batching, Orca, OSDI'22).

    The layers that attend are found by a probe, a forward pass in which each calls our attention once.
    """

    def __init__(self, model: PreTrainedModel, backend: AttentionBackend) -> None:
        self.model = model
        self.backend = backend
        self._context = AttentionContext(backend)
        self._takes_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.probe()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """What the cache is kept in."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def shapes(self) -> list[LayerShape]:
        """The attention layers in the order in which they run."""
        return self._context.shapes

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes that one block takes in all layers together."""
        return block_size * sum(shape.bytes_per_token(self.dtype) for shape in self.shapes)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make the KV cache, in place of an earlier one."""
        self._context.caches = []
        self._context.caches = [
            self.backend.allocate(shape, num_blocks, block_size, self.dtype, self.device) for shape in self.shapes
        ]

    @torch.inference_mode()
    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """Logits `[len(batch.sampled), vocab]` of the last tokens of the spans in `batch.sampled`."""
        with self._context.computing(self.model, batch):
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
        """Find the attention layers by a flat batch of requests of `max_model_len` tokens, attention left out.

        UnsupportedModel where they are not all found, or one wants what a flat batch does not compute.
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
                "compute by themselves (alibi in the scores, linear attention, state space, own attention module)"
            )
