"""Names (digests) of block contents."""

from hypothesis import given
from hypothesis import strategies as st

from orcastream.engine.kv.digest import ContentChain


def digests(tokens: list[int], tenant: str = "", salt: str = "", adapter: bytes = b"") -> list[bytes]:
    chain = ContentChain(tenant, salt, adapter)
    chain.extend(tokens, len(tokens), 4)
    return chain.digests


def test_only_full_blocks_have_a_name() -> None:
    assert len(digests(list(range(11)))) == 2
    assert all(len(digest) == 32 for digest in digests(list(range(11))))


def test_a_name_depends_on_all_tokens_before() -> None:
    one, two = digests([1, 2, 3, 4, 5, 6, 7, 8]), digests([9, 2, 3, 4, 5, 6, 7, 8])
    assert not set(one) & set(two)
    assert digests([1, 2, 3, 4, 0, 0, 0, 0])[0] == one[0]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=30), st.lists(st.integers(0, 30), max_size=5))
def test_growing_in_steps_changes_nothing(tokens: list[int], stops: list[int]) -> None:
    chain = ContentChain("tenant", "salt")
    for stop in [*sorted(stops), len(tokens)]:
        chain.extend(tokens, min(stop, len(tokens)), 4)
    assert chain.digests == digests(tokens, "tenant", "salt")


NAMES = st.text(max_size=6) | st.sampled_from(["", "1:", "a", "ab", "0:a", "1:ab"])
ADAPTERS = st.sampled_from([b"", b"a", b"0:", b"1:a", bytes(32)])
ROOTS = st.tuples(NAMES, NAMES, ADAPTERS)


@given(ROOTS, ROOTS)
def test_tenants_salts_and_adapters_never_share(own: tuple[str, str, bytes], other: tuple[str, str, bytes]) -> None:
    assert (digests([1, 2, 3, 4], *own) == digests([1, 2, 3, 4], *other)) == (own == other)


def test_a_copy_grows_independently() -> None:
    chain = ContentChain("", "")
    chain.extend(list(range(12)), 12, 4)
    twin = chain.copy(2)
    assert twin.digests == chain.digests[:2]
    twin.extend([*range(8), 0, 0, 0, 0], 12, 4)
    assert twin.digests[2] != chain.digests[2]
    assert len(chain.digests) == 3
