"""Names of contents."""

from hypothesis import given
from hypothesis import strategies as st

from engine.kv.digest import ContentChain


def digests(tokens: list[int], tenant: str = "", salt: str = "", block_size: int = 4) -> list[bytes]:
    chain = ContentChain(tenant, salt)
    chain.extend(tokens, len(tokens), block_size)
    return chain.digests


def test_full_blocks_alone_have_a_name() -> None:
    assert len(digests(list(range(11)))) == 2
    assert all(len(digest) == 32 for digest in digests(list(range(11))))


def test_a_name_follows_from_all_tokens_before() -> None:
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


@given(NAMES, NAMES, NAMES, NAMES)
def test_tenants_and_salts_never_share(tenant: str, salt: str, other_tenant: str, other_salt: str) -> None:
    own, other = digests([1, 2, 3, 4], tenant, salt), digests([1, 2, 3, 4], other_tenant, other_salt)
    assert (own == other) == ((tenant, salt) == (other_tenant, other_salt))


def test_a_copy_grows_by_itself_and_a_cut_chain_takes_other_tokens() -> None:
    chain = ContentChain("", "")
    chain.extend(list(range(12)), 12, 4)
    twin = chain.copy(2)
    assert twin.digests == chain.digests[:2]
    twin.extend([*range(8), 0, 0, 0, 0], 12, 4)
    assert twin.digests[2] != chain.digests[2]
    chain.cut(2)
    chain.extend([*range(8), 0, 0, 0, 0], 12, 4)
    assert chain.digests == twin.digests
