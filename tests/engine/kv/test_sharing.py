"""Which sequence may write where once blocks are shared, and what may be reused afterwards."""

import pytest

from orcastream.engine.errors import IntegrityError
from orcastream.engine.kv.digest import ContentChain
from tests.engine.kv.content import BLOCK_SIZE, ContentCache, Live


def world(windows: tuple[int | None, ...] = (None,), blocks: int = 12, host: int = 0) -> ContentCache:
    return ContentCache(windows, (blocks,) * len(windows), (host,) * len(windows))


def begin(world: ContentCache, tokens: list[int], tenant: str = "a", *, inside: bool = False) -> Live:
    """Open a sequence; only its cached tokens are computed so far."""
    chain = ContentChain(tenant, "")
    chain.extend(tokens, len(tokens), BLOCK_SIZE)
    kv, cached = world.cache.open(chain, len(tokens), tokens if inside else ())
    live = Live(tenant, chain, list(tokens), 1, kv=kv)
    live.contents = expected(tokens[:cached], tenant)
    return live


def expected(tokens: list[int], tenant: str = "a") -> list[int]:
    plain = world()
    live = Live(tenant, ContentChain(tenant, ""), list(tokens), 0)
    live.kv = plain.cache.sequence_of(max(1, len(tokens)))
    plain.write(live, len(tokens))
    return live.contents


def compute(world: ContentCache, live: Live, *, named: bool = True) -> Live:
    """Compute all its known tokens."""
    count = len(live.tokens) - live.computed
    if len(live.tokens) > live.open.capacity:
        assert world.cache.grow(live.open, live.computed, len(live.tokens))
    world.write(live, count)
    if named:
        world.cache.computed(live.open, live.tokens, live.computed)
    world.cache.check_integrity()
    world.check(live)
    return live


def fork(world: ContentCache, live: Live, length: int, more: list[int]) -> Live:
    kv = world.cache.fork(live.open, length)
    assert kv is not None
    return Live(live.tenant, kv.chain, live.tokens[:length] + more, 2, live.contents[:length], kv=kv)


def test_the_first_writer_of_a_shared_block_gets_a_copy() -> None:
    there = world()
    copied = there.count_copies()
    one = compute(there, begin(there, [1, 2, 3]))
    two = fork(there, one, 3, [8])
    assert there.cache.blocks_used == 2
    compute(there, two)
    one.tokens.append(9)
    compute(there, one)  # sole holder by now: no second copy
    assert len(copied) == 1
    there.check(two)


def test_a_fork_that_diverges_names_its_own_tokens() -> None:
    there = world()
    one = compute(there, begin(there, [1, 2, 3, 4, 5]))
    compute(there, fork(there, one, 3, [9, 9]))
    there.check(begin(there, [1, 2, 3, 9, 9, 9]))
    there.check(hit := begin(there, [1, 2, 3, 4, 5]))
    assert hit.computed == 4


def test_a_named_block_loses_its_name_when_its_last_holder_writes_into_it() -> None:
    there = world()
    one = compute(there, begin(there, [1, 2, 3, 4, 5]))
    two = fork(there, one, 3, [9])
    there.cache.close(one.open)
    compute(there, two)
    again = begin(there, [1, 2, 3, 4, 5])
    there.check(again)
    assert again.computed == 2


def test_tokens_that_left_a_window_cannot_be_forked() -> None:
    there = world((None, 3))
    one = compute(there, begin(there, [1, 2, 3, 4, 5, 6]), named=False)
    one.tokens += [7, 8]
    compute(there, one, named=False)
    with pytest.raises(IntegrityError, match="were given back"):
        there.cache.fork(one.open, 3)


def test_copies_shares_and_successors_of_a_discarded_sequence_are_never_reused() -> None:
    there = world(blocks=30)
    spoilt = compute(there, begin(there, [1, 2, 3, 4, 5]))
    sharing = compute(there, begin(there, [1, 2, 3, 4, 6, 6, 6]))
    copying = begin(there, [1, 2, 3, 9, 9], inside=True)
    assert copying.computed == 3
    compute(there, copying)
    ended = compute(there, begin(there, [1, 2, 3, 8, 8], inside=True))
    there.cache.close(ended.open, ended.tokens)
    other = compute(there, begin(there, [1, 2, 3, 4, 5], "b"))
    there.cache.discard(spoilt.open)
    for live in (sharing, copying):
        live.tokens += [7, 7, 7, 7]
        compute(there, live)
        there.cache.close(live.open, live.tokens)
    for live in (spoilt, sharing, copying, ended):
        again = begin(there, live.tokens, inside=True)
        assert again.computed == 0
        there.cache.close(again.open)
    assert begin(there, other.tokens, "b").computed == 4


def test_host_memory_distrusted_once_names_nothing_later() -> None:
    there = world(blocks=12, host=12)
    spoilt = compute(there, begin(there, [1, 2, 3, 4, 5]))
    away = compute(there, begin(there, [1, 2, 3, 4, 6]))
    swapped = there.cache.swap_out(away.open)
    there.cache.discard(spoilt.open)
    away.kv = there.cache.swap_in(swapped)
    away.tokens += [7, 7, 7, 7]
    there.cache.close(compute(there, away).open, away.tokens)
    assert begin(there, away.tokens).computed == 0


def test_blocks_recomputed_after_distrust_are_reused() -> None:
    there = world()
    there.cache.discard(compute(there, begin(there, [1, 2, 3, 4, 5])).open)
    there.cache.close(compute(there, begin(there, [1, 2, 3, 4, 5])).open)
    assert begin(there, [1, 2, 3, 4, 5]).computed == 4


def test_nothing_of_a_discarded_sequence_is_reused_not_even_from_host_memory() -> None:
    there = world((None, 3), blocks=6, host=8)
    one = compute(there, begin(there, list(range(6))))
    one.tokens += [7, 7, 7, 7]
    compute(there, one)
    there.cache.discard(one.open)
    assert begin(there, one.tokens).computed == 0


def test_tenants_share_nothing() -> None:
    there = world()
    compute(there, begin(there, [1, 2, 3, 4, 5], "a"))
    assert begin(there, [1, 2, 3, 4, 5], "b").computed == 0
    assert begin(there, [1, 2, 3, 4, 5], "a").computed == 4


def test_a_prefix_comes_back_from_host_memory_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    there = world(blocks=6, host=8)
    store = there.cache.groups[0].store
    assert store is not None
    moved: list[tuple[str, int]] = []
    for name in ("to_host", "to_device"):
        original = getattr(store, name)
        monkeypatch.setattr(store, name, lambda a, b, n=name, call=original: (moved.append((n, len(a))), call(a, b))[1])
    there.cache.close(compute(there, begin(there, list(range(9)))).open)
    there.cache.close(compute(there, begin(there, list(range(50, 62)))).open)
    assert moved == [("to_host", 4)]
    again = begin(there, list(range(9)))
    assert again.computed == 8
    there.check(again)
    assert moved == [("to_host", 4), ("to_host", 4), ("to_device", 4)]


def test_a_hit_in_host_memory_does_not_evict_its_own_rest() -> None:
    there = world(blocks=4, host=1)
    there.cache.close(compute(there, begin(there, [1, 2, 3, 4, 5, 6, 7])).open)
    there.cache.close(compute(there, begin(there, [9, 9, 9])).open)  # pushes the end of the prefix out
    again = begin(there, [1, 2, 3, 4, 5, 6, 7])
    assert again.computed == 6
    there.check(again)


def test_a_swapped_sequence_shares_remaining_blocks_again() -> None:
    there = world(blocks=4, host=4)
    one = compute(there, begin(there, list(range(8))))
    swapped = there.cache.swap_out(one.open)
    assert there.cache.can_swap_in(swapped)  # it has all existing blocks, and needs no more
    one.kv = there.cache.swap_in(swapped)
    there.cache.check_integrity()
    there.check(one)
    assert begin(there, [0, 1, 2]).computed == 2


def test_promises_end_with_the_sequence_that_made_them() -> None:
    there = world()
    begun, other = begin(there, [1, 2, 3, 4, 5]), begin(there, [1, 2, 3, 4, 5])
    there.cache.close(begun.open)
    there.cache.check_integrity()
    assert there.cache.awaits(other.chain, 5)
    there.cache.close(other.open)
    assert not there.cache.awaits(other.chain, 5)


def test_a_waiting_sequence_is_compared_with_the_cache_once_per_awaited_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a hundred requests that wait for a long common prefix would cost more than computing it."""
    there, tokens = world(), list(range(16))
    begun, chain = begin(there, tokens), ContentChain("a", "")
    chain.extend(tokens, len(tokens), BLOCK_SIZE)
    assert there.cache.grow(begun.open, 0, len(tokens))
    match, compared = there.cache._prefixes.match, []

    def counted(chain: ContentChain, num_tokens: int) -> int:
        compared.append(match(chain, num_tokens))
        return compared[-1]

    monkeypatch.setattr(there.cache._prefixes, "match", counted)
    for block in range(len(tokens) // BLOCK_SIZE):
        for _ in range(3):
            assert there.cache.awaits(chain, len(tokens)) == (block < 7)
        there.write(begun, BLOCK_SIZE)
        there.cache.computed(begun.open, tokens, begun.computed)
    assert compared == [0, 2, 4, 5, 6, 7, 7, 7]


def test_a_sequence_whose_blocks_have_no_names_yet_awaits_nothing() -> None:
    there = world()
    begin(there, [1, 2, 3, 4, 5])
    assert not there.cache.awaits(ContentChain("a", ""), 5)


def test_discarded_sequences_leave_nothing_behind() -> None:
    there = world(host=4)

    def sizes() -> dict[str, int]:
        return {name: len(held) for name, held in vars(there.cache._prefixes).items() if isinstance(held, dict | set)}

    before = sizes()
    for tenant in "abcdefgh":
        there.cache.discard(compute(there, begin(there, [1, 2, 3, 4, 5], tenant)).open)
    assert sizes() == before


def test_no_sequence_waits_for_blocks_distrusted_before_computation() -> None:
    there = world()
    spoilt, begun = begin(there, [1, 2, 3, 4, 5]), begin(there, [1, 2, 3, 4, 5])
    there.cache.discard(spoilt.open)
    assert not there.cache.awaits(begun.chain, 5)
    there.cache.check_integrity()
