"""Computes a whole decoder of the common kind with few kernels per layer, on a GPU."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from orcastream.engine.attention.base import AttentionBackend, AttentionCall
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.kv.store import LayerCache
from orcastream.engine.model.adapters.adapter_rows import AdapterRows
from orcastream.engine.model.decoder_model import ATTRIBUTE, DecoderModel, GatedMLP, Norm
from orcastream.engine.model.dense_linear import DenseLinear
from orcastream.engine.native.maxima import RowMaxima
from orcastream.schemas.model_limits import context_length

_POSITIONS_AT_ONCE = 4096


class TritonDecoder:
    """Computes flat batches for one runner; several may share the model.

    A layer takes a merged product for queries, keys and values, one kernel that rotates them, attention, a product, one
    kernel that adds and normalizes, a merged product for gate and up, one kernel between them and the product after it,
    and one kernel that adds and normalizes for the next layer.
    """

    @classmethod
    def of(
        cls, model: PreTrainedModel, backend: AttentionBackend, max_model_len: int | None = None
    ) -> "TritonDecoder | None":
        """Return a decoder that computes `model` with `backend`; None if its modules must compute it.

        No request is longer than `max_model_len`, by default the model's limit.
        """
        decoder: DecoderModel[Any] | None = getattr(model, ATTRIBUTE, None)
        if decoder is None or not isinstance(decoder.head, DenseLinear):
            return None
        text_config = model.config.get_text_config()
        return cls(decoder, backend, context_length(lambda name: getattr(text_config, name, None), max_model_len))

    def __init__(self, model: DecoderModel[DenseLinear], backend: AttentionBackend, num_positions: int) -> None:
        self.model = model
        assert isinstance(model.embedding, torch.Tensor)
        self._embedding = model.embedding
        self._backend = backend
        self._angles = _angle_table(model, num_positions)
        self._mlps = [each.mlp for each in model.layers if isinstance(each.mlp, GatedMLP)]
        self._head_norms = [
            None if each.query_norm is None else torch.stack([_weight(each.query_norm), _weight(each.key_norm)])
            for each in model.layers
        ]

    def takes(self, adapters: Sequence[AdapterRows]) -> bool:
        """Whether it computes iterations with these adapters: only without, as modules apply them."""
        return not adapters

    def forward(
        self,
        batch: FlatBatch,
        plan: Any,
        caches: Sequence[LayerCache],
        groups: Sequence[int],
        adapters: Sequence[AdapterRows] = (),
        *,
        maxima: RowMaxima | None = None,
        begins: Callable[[], None],
    ) -> torch.Tensor:
        """Return logits `[len(batch.logit_rows), vocab]`; `groups` has the group of each layer. Their maxima are not
        found here.

        `begins` is called before the first kernel. Nothing here waits for the device or copies to it, and memory that
        is read keeps its address, so that a graph can be captured. After the attention of the last layer only the rows
        of logits are computed.
        """
        from orcastream.engine.model.triton.gated import gated
        from orcastream.engine.model.triton.norm import add_norm

        begins()
        model, epsilon = self.model, self.model.final_norm.epsilon
        hidden = torch.nn.functional.embedding(batch.input_ids[0], self._embedding)
        change = None
        for index, layer in enumerate(model.layers):
            rows = layer.projections(add_norm(hidden, change, _weight(layer.input_norm), epsilon))
            attended = self._attend(index, rows, batch, plan, caches[index], groups[index])
            if index == len(model.layers) - 1 and len(batch.logit_rows) < len(hidden):
                if not len(batch.logit_rows):
                    return hidden.new_empty(0, model.head.n)
                hidden, attended = (each.index_select(0, batch.logit_rows) for each in (hidden, attended))
            normed = add_norm(hidden, layer.output(attended), _weight(layer.mlp_norm), epsilon)
            mlp = self._mlps[index]
            change = mlp.down(gated(mlp.gate_up(normed), model.activation))
        return model.head(add_norm(hidden, change, model.final_norm.weight, epsilon))

    def _attend(
        self, index: int, rows: torch.Tensor, batch: FlatBatch, plan: Any, cache: LayerCache, group: int
    ) -> torch.Tensor:
        """Return the attention of layer `index`, `[num_tokens, heads * size]`, for the rows of its projections."""
        from orcastream.engine.model.triton.rotary import rotate

        model = self.model
        sizes = {
            "num_heads": model.num_heads,
            "num_kv_heads": model.num_kv_heads,
            "head_size": model.head_size,
        }
        rotate(rows, batch.position_ids[0], self._angles, self._head_norms[index], model.final_norm.epsilon, **sizes)
        heads = rows.view(len(rows), -1, model.head_size).transpose(0, 1)
        query, key, value = heads.split_with_sizes([model.num_heads, model.num_kv_heads, model.num_kv_heads])
        call = AttentionCall(model.scale, group, model.factors.softcap or None, model.layers[index].sinks)
        return self._backend.attend(plan, cache, query, key, value, call).flatten(1)


def _weight(norm: Norm | None) -> torch.Tensor:
    """Return the weight of a norm that this decoder needs (`fuse_decoder` attaches no other models)."""
    assert norm is not None
    return norm.weight


def _angle_table(model: DecoderModel[DenseLinear], num_positions: int) -> torch.Tensor:
    """Return cosines, then sines of each position, `[num_positions, rotary_size]`: those of one half of a head."""
    table = torch.empty(num_positions, model.rotary.size, dtype=torch.float32, device=model.final_norm.weight.device)
    half = model.rotary.size // 2
    for start in range(0, num_positions, _POSITIONS_AT_ONCE):
        stop = min(start + _POSITIONS_AT_ONCE, num_positions)
        cosines, sines = model.rotary.tables[0](torch.arange(start, stop, device=table.device))
        table[start:stop, :half] = cosines[:, :half]
        table[start:stop, half:] = sines[:, :half]
    return table
