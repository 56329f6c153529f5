"""How spans are laid end to end."""

import torch

from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import LayerGroup
from orcastream.engine.kv.sequence import Sequence


def make_cache(*windows: int | None) -> KVCache:
    return KVCache(
        [LayerGroup(window, ()) for window in windows],
        [16] * len(windows),
        block_size=4,
        max_sequences=8,
        max_model_len=40,
        longest_span=8,
        prefix_cache=False,
    )


def room(cache: KVCache, *stops: int) -> list[Sequence]:
    return [cache.sequence_of(stop) for stop in stops]


def test_single_tokens_come_first_by_descending_context(device: torch.device) -> None:
    cache = make_cache(None)
    a, b, c, d = room(cache, 5, 2, 2, 6)  # blocks 0 1, 2, 3, 4 5
    spans = [
        SpanTokens(a, [1, 2, 3], 2, 1),
        SpanTokens(b, [4], 1, 1),
        SpanTokens(c, [5, 6], 0, 0),
        SpanTokens(d, [9], 5, 1),
    ]
    batch = FlatBatch.build(spans, cache, device)
    assert batch.num_single == 2
    assert batch.offsets.tolist() == [0, 1, 2, 5, 7]
    assert batch.offsets_device.tolist() == [0, 1, 2, 5, 7]
    assert batch.contexts.tolist() == [6, 2, 5, 2]
    assert batch.contexts_device.tolist() == [6, 2, 5, 2]
    assert batch.input_ids.tolist() == [[9, 4, 1, 2, 3, 5, 6]]
    assert batch.position_ids.tolist() == [[5, 1, 2, 3, 4, 0, 1]]
    (group,) = batch.groups
    assert group.tables.tolist() == [[4, 5], [2, 0], [0, 1], [3, 0]]
    assert group.tables_device.tolist() == group.tables.tolist()
    assert group.slots.tolist() == [21, 9, 2, 3, 4, 12, 13]
    assert batch.logit_rows.tolist() == [0, 1, 4]
    assert batch.order == (3, 1, 0, 2)
    assert batch.logit_spans == (3, 1, 0)
    assert batch.device.type == device.type


def test_each_group_has_its_own_tables(device: torch.device) -> None:
    cache = make_cache(None, 5)
    (sequence,) = room(cache, 12)
    assert cache.grow(sequence, 12, 13)
    batch = FlatBatch.build([SpanTokens(sequence, [7], 12, 1)], cache, device)
    assert [group.window for group in batch.groups] == [None, 5]
    assert [group.tables.tolist() for group in batch.groups] == [[[0, 1, 2, 3]], [[0, 0, 2, 3]]]


def test_several_logits_of_one_span(device: torch.device) -> None:
    cache = make_cache(None)
    a, b = room(cache, 4, 3)
    batch = FlatBatch.build([SpanTokens(a, [1, 2, 3, 4], 0, 3), SpanTokens(b, [5, 6], 1, 1)], cache, device)
    assert batch.logit_rows.tolist() == [1, 2, 3, 5]
    assert batch.logit_spans == (0, 0, 0, 1)


def test_no_logits_at_all(device: torch.device) -> None:
    cache = make_cache(None)
    (a,) = room(cache, 2)
    batch = FlatBatch.build([SpanTokens(a, [5, 6], 0, 0)], cache, device)
    assert batch.logit_spans == ()
    assert batch.logit_rows.shape == (0,)
