"""The prefix cache: finds blocks that hold what a new sequence needs."""

from collections.abc import Iterable
from collections.abc import Sequence as Items

from orcastream.engine.errors import IntegrityError
from orcastream.engine.kv.continuations import Continuations
from orcastream.engine.kv.digest import ContentChain
from orcastream.engine.kv.group import GroupCache
from orcastream.engine.kv.sequence import NO_BLOCK, Sequence


class PrefixCache:
    """Finds cached content by name for new sequences, and names what sequences have computed.

    The names are stored in the pools of the groups. In addition it knows how prefixes continue inside a block
    (Continuations), and which content running sequences have promised to compute, so that others may wait for it.
    With `enabled` False it never finds anything.
    """

    def __init__(self, groups: Items[GroupCache], block_size: int, *, enabled: bool) -> None:
        self.enabled = enabled
        self._groups = groups
        self._block_size = block_size
        self._promised: dict[bytes, int] = {}
        """How many running sequences are about to compute each content."""
        self._most_named = sum(group.pool.num_blocks + group.host.num_slots for group in groups)
        self._continuations = Continuations(self._most_named)
        self._named: dict[bytes, set[bytes]] = {}
        """By the root of their chains: all names in use, and some that are no longer in use."""
        self._num_named = 0

    def match(self, chain: ContentChain, num_tokens: int) -> int:
        """Return how many leading blocks of a sequence of `num_tokens` known tokens are cached.

        Never all of its tokens: at least one must be computed, for its logits.
        """
        if not self.enabled:
            return 0
        digests = chain.digests
        length = min(len(digests), (num_tokens - 1) // self._block_size)
        before = -1
        while length and length != before:
            before = length
            for group in self._groups:
                length = _matched(group, digests, length, self._block_size)
        return length

    def awaits(self, chain: ContentChain, num_tokens: int) -> bool:
        """Whether running sequences are about to compute enough blocks for `chain` that it should wait for them.

        Enough is at least a quarter of the tokens that it would have to compute itself now. It waits for the last of
        these blocks, so that a long prompt is not compared with the cache again in every iteration until then.
        """
        if not self._promised:
            return False
        if self._is_coming(chain.awaited):
            return True
        size = self._block_size
        matched = self.match(chain, num_tokens)
        stop = matched - (-max(1, num_tokens - matched * size) // (4 * size))
        coming = chain.digests[matched:stop]
        named = min(len(chain.digests), (num_tokens - 1) // size)
        enough = stop <= named and all(digest in self._promised for digest in coming)
        chain.awaited = coming[-1] if enough else None
        return enough

    def _is_coming(self, digest: bytes | None) -> bool:
        return digest in self._promised and not all(group.has(digest) for group in self._groups)

    def adopt(self, sequence: Sequence, num_tokens: int, tokens: Items[int]) -> int:
        """Let a fresh `sequence` hold the cached prefix of its `num_tokens` known tokens; return the prefix's length.

        If `tokens` are given, the match may end inside a block, which is copied.
        """
        length = self._reuse(sequence, self.match(sequence.chain, num_tokens))
        begun = self._begin_block(sequence, tokens[length * self._block_size : num_tokens - 1]) if tokens else 0
        sequence.num_named = length
        if self.enabled:
            sequence.num_promised = len(sequence.chain.digests)
            for digest in sequence.chain.digests[length:]:
                self._promised[digest] = self._promised.get(digest, 0) + 1
        return length * self._block_size + begun

    def _reuse(self, sequence: Sequence, length: int) -> int:
        """Fill the empty tables with the first `length` blocks of the chain, or with none if not all fit."""
        for group in self._groups:
            first = group.first_visible(length * self._block_size)
            group.skip(sequence, first)
            if not group.reuse(sequence, sequence.chain.digests[first:length]):
                for each in self._groups:
                    each.clear(sequence)
                return 0
        return length

    def _begin_block(self, sequence: Sequence, tokens: Items[int]) -> int:
        """Copy the cached block that shares most leading tokens with `tokens`, which come next; return how many."""
        if not self.enabled:
            return 0
        parent = sequence.chain.before(len(sequence))
        found = self._continuations.longest(parent, tokens[: self._block_size])
        if found is None:
            return 0
        digest, shared = found
        if not all(group.can_copy(digest) for group in self._groups):
            self._continuations.forget(digest)
            return 0
        for group in self._groups:
            group.append_copy(sequence, digest)
        return shared

    def name(self, sequence: Sequence, tokens: Items[int], num_computed: int) -> None:
        """Name the full blocks of the first `num_computed` of `tokens`, so that they can be reused."""
        if not self.enabled or num_computed // self._block_size <= sequence.num_named:
            return
        if not sequence.trusted:
            return
        chain = sequence.chain
        chain.extend(tokens, num_computed, self._block_size)
        for index in range(sequence.num_named, num_computed // self._block_size):
            digest = chain.digests[index]
            for group in self._groups:
                block = sequence.blocks[group.index][index]
                if block != NO_BLOCK:
                    group.pool.name(block, digest)
            self._note(chain, digest)
            self._continuations.add(chain.before(index), digest, tokens[self._span_of(index)])
            if index < sequence.num_promised:
                self._unpromise(digest)
        sequence.num_named = num_computed // self._block_size

    def name_tail(self, sequence: Sequence, tokens: Items[int]) -> None:
        """Name the last block, which is not full, of a sequence that ends after computing `tokens`."""
        if not self.enabled or not sequence.trusted:
            return
        index, rest = divmod(len(tokens), self._block_size)
        if not rest or index != sequence.num_named or index >= len(sequence):
            return
        tail = tokens[index * self._block_size :]
        digest = sequence.chain.tail(index, tail)
        for group in self._groups:
            group.pool.name(sequence.blocks[group.index][index], digest)
        self._note(sequence.chain, digest)
        self._continuations.add(sequence.chain.before(index), digest, tail)

    def _span_of(self, index: int) -> slice:
        """Return the slice of the tokens of block `index`."""
        return slice(index * self._block_size, (index + 1) * self._block_size)

    def promise_no_more(self, sequence: Sequence) -> None:
        """Withdraw the promises of `sequence`, so that no other waits for them."""
        for digest in sequence.chain.digests[sequence.num_named : sequence.num_promised]:
            self._unpromise(digest)
        sequence.num_promised = sequence.num_named

    def _unpromise(self, digest: bytes) -> None:
        left = self._promised[digest] - 1
        if left:
            self._promised[digest] = left
        else:
            del self._promised[digest]

    def distrust(self, root: bytes, sequences: Iterable[Sequence]) -> None:
        """Forget all content computed so far in chains of `root`; those of `sequences`, all open ones, that have this
        root name nothing from now on.

        Whatever shared, copied or continued an untrusted block has the same root, so no tracking of individual blocks
        is needed, and other tenants keep their content.
        """
        for sequence in sequences:
            if sequence.chain.root == root:
                self.promise_no_more(sequence)
                sequence.trusted = False
        names = self._named.pop(root, set())
        self._num_named -= len(names)
        for digest in names:
            self._continuations.forget(digest)
            for group in self._groups:
                group.forget(digest)

    def _note(self, chain: ContentChain, digest: bytes) -> None:
        names = self._named.setdefault(chain.root, set())
        self._num_named += digest not in names
        names.add(digest)
        if self._num_named > 2 * self._most_named:
            self._named = {
                root: used
                for root, names in self._named.items()
                if (used := {name for name in names if any(group.has(name) for group in self._groups)})
            }
            self._num_named = sum(map(len, self._named.values()))

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise IntegrityError if promises and `sequences`, all open ones, disagree."""
        promised: dict[bytes, int] = {}
        for sequence in sequences:
            for digest in sequence.chain.digests[sequence.num_named : sequence.num_promised]:
                promised[digest] = promised.get(digest, 0) + 1
        if promised != self._promised:
            raise IntegrityError("promised content and running sequences differ")
        known = set().union(*self._named.values())
        if any(name not in known for group in self._groups for name in group.names()):
            raise IntegrityError("a name in use is not known by its root")
        if self._num_named != len(known):
            raise IntegrityError(f"{self._num_named} names were counted, there are {len(known)}")


def _matched(group: GroupCache, digests: list[bytes], most: int, block_size: int) -> int:
    """Return the most leading blocks, up to `most`, of which all visible ones are cached: a window needs no others."""
    if group.window is None:
        on_device, in_host = group.pool.names(), group.host.names()
        missing = (i for i in range(most) if digests[i] not in on_device and digests[i] not in in_host)
        return next(missing, most)
    length, first = most, most
    while length:
        needed = group.first_visible(length * block_size)
        while first > needed and group.has(digests[first - 1]):
            first -= 1
        if first <= needed:
            return length
        length = first - 1  # block first - 1 is missing, and visible from every length tried so far
        first = length
    return 0
