"""Pictures of the KV cache."""

from itertools import chain, repeat

from orcastream.engine.kv.block_map import MOST_CELLS, BlockMap
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.digest import ContentChain
from orcastream.engine.kv.layout import LayerGroup

SIZE = 4


def cache(num_blocks: int) -> KVCache:
    groups = [LayerGroup(None, (0,))]
    return KVCache(groups, [num_blocks], block_size=SIZE, max_sequences=4, max_model_len=64, longest_span=64)


def cells(picture: BlockMap) -> list[int]:
    codes, counts = picture.runs[::2], picture.runs[1::2]
    return list(chain.from_iterable(map(repeat, codes, counts)))


def test_a_picture_shows_holders_shared_and_cached_blocks() -> None:
    kv = cache(8)
    tokens = list(range(10))
    first, _ = kv.open(ContentChain("t", ""), len(tokens))
    assert kv.grow(first, 0, len(tokens))
    kv.computed(first, tokens, len(tokens))
    twin = kv.fork(first, 8)
    assert twin is not None
    (group,) = kv.groups
    assert cells(BlockMap.of(group, [(0, first), (5, twin)])) == [5, 5, 4, 0, 0, 0, 0, 0]
    assert cells(BlockMap.of(group, [(5, twin)])) == [15, 15, 2, 0, 0, 0, 0, 0]
    assert cells(BlockMap.of(group, [])) == [3, 3, 2, 0, 0, 0, 0, 0]
    kv.close(twin)
    assert cells(BlockMap.of(group, [(1, first)])) == [6, 6, 6, 0, 0, 0, 0, 0]
    kv.close(first)
    assert cells(BlockMap.of(group, [])) == [1, 1, 0, 0, 0, 0, 0, 0]


def test_a_large_pool_shows_every_nth_block() -> None:
    kv = cache(2 * MOST_CELLS + 1)
    sequence, _ = kv.open(ContentChain("t", ""), 5 * SIZE)
    assert kv.grow(sequence, 0, 5 * SIZE)
    picture = BlockMap.of(kv.groups[0], [(0, sequence)])
    assert (picture.num_blocks, picture.stride) == (2 * MOST_CELLS + 1, 3)
    assert sequence.blocks[0] == [0, 1, 2, 3, 4]
    shown = cells(picture)
    assert shown[:2] == [4, 4]
    assert set(shown[2:]) == {0}
    assert len(shown) <= MOST_CELLS
