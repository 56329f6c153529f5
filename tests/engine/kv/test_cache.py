"""The KV cache against a plain model that knows the content of every slot."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orcastream.engine.errors import IntegrityError
from orcastream.engine.kv.digest import ContentChain
from tests.engine.kv.content import BLOCK_SIZE, LONGEST_SPAN, MAX_MODEL_LEN, ContentCache, Live, content

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)
SHAPES: list[tuple[tuple[int | None, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((None,), (12,), (0,)),
    ((None,), (8,), (6,)),
    ((None, 5), (12, 12), (0, 0)),
    ((None, 5), (8, 7), (6, 5)),
    ((None, 5, 1), (10, 8, 6), (4, 9, 2)),
    ((3,), (6,), (5,)),
]


class CacheMachine(RuleBasedStateMachine):
    """Sequences of tenants `a` and `b` over two token values, so that they often share prefixes."""

    def __init__(self) -> None:
        super().__init__()
        self.live: list[Live] = []
        self.away: list[Live] = []
        self.distrusted = {"a": 0, "b": 0}
        """By tenant the last writer of which nothing may be reused."""
        self.known: list[tuple[str, list[int]]] = []
        self.writers = 0

    @initialize(shape=st.sampled_from(SHAPES))
    def build(self, shape: tuple[tuple[int | None, ...], tuple[int, ...], tuple[int, ...]]) -> None:
        self.world = ContentCache(*shape)
        self.cache = self.world.cache

    def begin(self, tenant: str, tokens: list[int], inside: bool = False) -> Live | None:
        chain = ContentChain(tenant, "")
        chain.extend(tokens, len(tokens), BLOCK_SIZE)
        if len(tokens) >= self.cache.max_tokens or not self.cache.fits(chain, len(tokens)):
            return None
        matched = self.cache.match(chain, len(tokens))
        kv, cached = self.cache.open(chain, len(tokens), tokens if inside else ())
        assert cached == matched * BLOCK_SIZE or (inside and matched * BLOCK_SIZE < cached)
        assert cached < len(tokens)
        self.writers += 1
        live = Live(tenant, chain, tokens, self.writers, kv=kv)
        for token in tokens[:cached]:
            before = live.contents[-1] if live.contents else 0
            live.contents.append(content(tenant, before, token))
        assert min(self.world.writers(live), default=self.writers) > self.distrusted[tenant]
        self.live.append(live)
        return live

    def advance(self, live: Live, count: int) -> bool:
        start = live.computed
        if start + count > live.open.capacity and not self.cache.grow(live.open, start, start + count):
            return False
        self.world.write(live, count)
        return True

    @rule(tenant=st.sampled_from("ab"), tokens=TOKENS, inside=st.booleans())
    def open(self, tenant: str, tokens: list[int], inside: bool) -> None:
        self.begin(tenant, tokens, inside)

    @rule(tenant=st.sampled_from("ab"), tokens=TOKENS, chunk=st.integers(1, LONGEST_SPAN))
    def open_and_compute(self, tenant: str, tokens: list[int], chunk: int) -> None:
        live = self.begin(tenant, tokens)
        if live is not None:  # what `fits` promised is available
            live.tokens.append(0)
            while live.computed < len(live.tokens):
                assert self.advance(live, min(chunk, len(live.tokens) - live.computed))
                self.cache.computed(live.open, live.tokens, live.computed)
                self.cache.check_integrity()

    @precondition(lambda self: self.live or self.known)
    @rule(data=st.data(), extra=st.integers(0, 3), inside=st.booleans())
    def ask_again(self, data: st.DataObject, extra: int, inside: bool) -> None:
        tenant, tokens = data.draw(st.sampled_from([(each.tenant, each.tokens) for each in self.live] + self.known))
        if tokens:
            self.begin(tenant, (tokens + [1] * extra)[: MAX_MODEL_LEN - 1], inside)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, LONGEST_SPAN), new=st.integers(0, 1), named=st.booleans())
    def compute(self, data: st.DataObject, count: int, new: int, named: bool) -> None:
        live = data.draw(st.sampled_from(self.live))
        count = min(count, MAX_MODEL_LEN - live.computed)
        live.tokens += [new] * (live.computed + count - len(live.tokens))
        if count and self.advance(live, count) and named:
            self.cache.computed(live.open, live.tokens, live.computed)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.live))
        length = data.draw(st.integers(max(0, live.computed - 3), live.computed))
        if self.sees_too_little(live, length):
            with pytest.raises(IntegrityError, match="were given back"):
                self.cache.fork(live.open, length)
            return
        twin = self.cache.fork(live.open, length)
        if twin is not None:
            self.writers += 1
            known = live.tokens[:length]
            self.live.append(Live(live.tenant, twin.chain, known, self.writers, live.contents[:length], kv=twin))
            self.go_on(data.draw(st.permutations([live, self.live[-1]])), data.draw(st.booleans()))

    def go_on(self, both: list[Live], named: bool) -> None:
        """The two write different tokens."""
        for token, live in enumerate(both):
            count = min(3, MAX_MODEL_LEN - live.computed)
            if len(live.tokens) == live.computed:
                live.tokens += [token] * count
            count = min(count, len(live.tokens) - live.computed)
            if count and self.advance(live, count) and named:
                self.cache.computed(live.open, live.tokens, live.computed)

    def sees_too_little(self, live: Live, length: int) -> bool:
        return any(live.open.first[group.index] > group.first_visible(length) for group in self.cache.groups)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def swap_out(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.live))
        if self.cache.can_swap_out(live.open):
            live.swapped = self.cache.swap_out(live.open)
            live.kv = None
            self.live.remove(live)
            self.away.append(live)

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def swap_in(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.away))
        assert live.swapped is not None
        if self.cache.can_swap_in(live.swapped):
            live.kv, live.swapped = self.cache.swap_in(live.swapped), None
            self.away.remove(live)
            self.live.append(live)

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.away))
        assert live.swapped is not None
        self.cache.drop(live.swapped)
        self.away.remove(live)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), discard=st.booleans(), told=st.booleans())
    def close(self, data: st.DataObject, discard: bool, told: bool) -> None:
        live = data.draw(st.sampled_from(self.live))
        self.live.remove(live)
        self.known = [*self.known, (live.tenant, list(live.tokens))][-4:]
        if discard:
            self.cache.discard(live.open)
        else:
            self.cache.close(live.open, live.tokens[: live.computed] if told else ())
        if discard:
            self.distrusted[live.tenant] = self.writers

    @invariant()
    def everybody_sees_their_own_tokens(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check_integrity()
            assert self.cache.num_sequences == len(self.live)
            for live in self.live:
                self.world.check(live)

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            for live in self.live:
                self.cache.close(live.open)
            for live in self.away:
                assert live.swapped is not None
                self.cache.drop(live.swapped)
            self.cache.check_integrity()
            assert self.cache.blocks_used == 0


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
