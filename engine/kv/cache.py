"""The KV cache: the owner of blocks, block tables, names, tensors and host memory."""

from collections.abc import Iterable
from collections.abc import Sequence as Items

from orcastream.engine.errors import IntegrityError, OutOfBlocks
from orcastream.engine.kv.digest import ContentChain
from orcastream.engine.kv.sequence import Sequence, SwappedSequence
from orcastream.engine.kv.space import CacheSpace


class KVCache(CacheSpace):
    """Keys and values of all running requests and of reusable prefixes, in blocks of `block_size` tokens.

    | aspect | rule |
    |---|---|
    | layers that share block tables | groups by window; a group's pool, tables and tensors are one GroupCache |
    | blocks of a request | a Sequence: `open`, `grow` before tokens are computed, `computed` after, `close` |
    | writing | only the sole holder of a block may write; `grow` first copies a shared block (copy on write) |
    | reuse | blocks by their content (PrefixCache), until evicted, least recently used first |
    | host memory | `swap_out` and `swap_in`; evicted named blocks go to host memory, too, if there is any |

    This class knows nothing of requests or scheduling. Token counts start at a sequence's first token.
    """

    # -- the life of a sequence ---------------------------------------------------------------------------------

    def open(self, chain: ContentChain, num_tokens: int, tokens: Items[int] = ()) -> tuple[Sequence, int]:
        """Return a sequence for `num_tokens` known tokens, and how many of them it already has from a cached prefix.

        If `tokens` are given, the match may end inside a block, which is copied. A row must be free; see `fits`.
        """
        sequence = self._new(chain)
        cached = self._prefixes.adopt(sequence, num_tokens, tokens)
        sequence.capacity = len(sequence) * self.block_size
        return sequence, cached

    def _new(self, chain: ContentChain, *, trusted: bool = True) -> Sequence:
        sequence = Sequence(self._rows.pop(), len(self.groups), chain)
        sequence.trusted = trusted
        self._sequences[sequence.row] = sequence
        return sequence

    def grow(self, sequence: Sequence, start: int, stop: int) -> bool:
        """Make tokens `start` … `stop - 1` writable. Return False, and take no blocks, if too few are free.

        Blocks before `start` that no later query can see are released in either case.
        """
        size = self.block_size
        copied = start // size if start % size else None
        missing = max(0, -(-stop // size) - len(sequence))
        for group in self.groups:
            if group.window is not None:
                group.give_back(sequence, group.first_visible(start))
        for group in self.groups:
            needed = missing
            if copied is not None and group.pool.is_shared(sequence.blocks[group.index][copied]):
                needed += 1
            if needed > group.pool.num_free:
                return False
        for group in self.groups:
            if copied is not None:
                group.own(sequence, copied)
            if missing == 1:
                group.append(sequence, group.pool.take_one())
            else:
                for block in group.pool.take(missing):
                    group.append(sequence, block)
        sequence.capacity = len(sequence) * size
        return True

    def computed(self, sequence: Sequence, tokens: Items[int], num_computed: int) -> None:
        """Note that the first `num_computed` of `tokens` are in the cache: full blocks can be reused from now on."""
        self._prefixes.name(sequence, tokens, num_computed)

    def close(self, sequence: Sequence, computed: Items[int] = ()) -> None:
        """Release all blocks; named ones can be reused until they are evicted.

        If the `computed` tokens are given, so can the last block, even if it is not full.
        """
        self._prefixes.name_tail(sequence, computed)
        for group in self.groups:
            group.clear(sequence)
        self._prefixes.promise_no_more(sequence)
        del self._sequences[sequence.row]
        self._rows.append(sequence.row)

    def discard(self, sequence: Sequence) -> None:
        """Close a sequence whose keys and values cannot be trusted.

        Nothing that may derive from them is reused: all that its tenant, salt and adapter have in the cache.
        """
        self.distrust(sequence.chain)
        self.close(sequence)

    def distrust(self, chain: ContentChain) -> None:
        """Do as `discard` for a sequence that has been closed or swapped out."""
        self._prefixes.distrust(chain.root, self._sequences.values())
        self._swap_space.distrust(chain.root)

    def sequence_of(self, num_tokens: int) -> Sequence:
        """Return a new sequence with room for `num_tokens` tokens. Raises OutOfBlocks if they do not fit."""
        sequence, _ = self.open(ContentChain("", ""), num_tokens)
        if not self.grow(sequence, 0, num_tokens):
            self.close(sequence)
            raise OutOfBlocks(f"{num_tokens} tokens do not fit")
        return sequence

    def fork(self, sequence: Sequence, num_tokens: int) -> Sequence | None:
        """Return a second sequence of the first `num_tokens` that shares blocks, copy on write; None if no row left."""
        length = self._blocks_seen_from(sequence, num_tokens)
        if not self._rows:
            return None
        twin = self._new(sequence.chain.copy(num_tokens // self.block_size), trusted=sequence.trusted)
        for group in self.groups:
            first = sequence.first[group.index]
            group.skip(twin, first)
            for block in sequence.blocks[group.index][first:length]:
                group.pool.hold(block)
                group.append(twin, block)
        twin.num_named = twin.num_promised = min(sequence.num_named, num_tokens // self.block_size)
        sequence.capacity = twin.capacity = 0  # the next to write must call `grow`
        return twin

    def _blocks_seen_from(self, sequence: Sequence, num_tokens: int) -> int:
        """Return the number of blocks of the first `num_tokens` tokens.

        Raises IntegrityError unless the sequence has all blocks that the next query can see.
        """
        length = -(-num_tokens // self.block_size)
        if length > len(sequence):
            raise IntegrityError(f"a sequence with {len(sequence)} blocks does not hold {num_tokens} tokens")
        if any(sequence.first[group.index] > group.first_visible(num_tokens) for group in self.groups):
            raise IntegrityError(f"blocks that token {num_tokens} can see were given back")
        return length

    # -- host memory --------------------------------------------------------------------------------------------

    def can_swap_out(self, sequence: Sequence) -> bool:
        """Whether host memory has room for all blocks of `sequence`."""
        return self._swap_space.has_room(sequence)

    def swap_out(self, sequence: Sequence) -> SwappedSequence | None:
        """Move a sequence to host memory; `can_swap_out` must be true.

        None, and nothing changed, if memory does not suffice for the copies.
        """
        swapped = self._swap_space.store(sequence)
        if swapped is not None:
            self.close(sequence)
        return swapped

    def can_swap_in(self, swapped: SwappedSequence, beside: Iterable[tuple[Sequence, int]] = ()) -> bool:
        """Whether there are a row and blocks for it, and one more block to continue unless it needs the whole pool.

        Blocks that `beside` still lack are reserved, as in `fits`.
        """
        return bool(self._rows) and all(
            min(len(slots) + 1, group.pool.num_blocks) <= free
            for group, slots, free in zip(self.groups, swapped.slots, self._free_beside(beside), strict=True)
        )

    def swap_in(self, swapped: SwappedSequence) -> Sequence | None:
        """Bring a sequence back to the device; `can_swap_in` must be true.

        None if memory does not suffice for the copies: `swapped` is lost then.
        """
        sequence = self._new(swapped.chain, trusted=swapped.trusted)
        named = swapped.num_named if swapped.trusted else 0
        if not self._swap_space.restore(swapped, sequence, named):
            self.close(sequence)
            return None
        sequence.num_named = sequence.num_promised = swapped.num_named
        sequence.capacity = swapped.length * self.block_size
        return sequence

    def drop(self, swapped: SwappedSequence) -> None:
        """Free the host memory of a sequence whose request has ended."""
        self._swap_space.drop(swapped)

    # -- the rest -----------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise IntegrityError if sequences, pools, tables, promises and host memory disagree."""
        sequences = list(self._sequences.values())
        for group in self.groups:
            group.check_integrity(sequences, self._swap_space.pinned(group.index))
        for sequence in sequences:
            if len({len(blocks) for blocks in sequence.blocks}) != 1:
                raise IntegrityError("the tables of a sequence differ in length")
            if sequence.capacity > len(sequence) * self.block_size:
                raise IntegrityError("a sequence may write more tokens than its blocks hold")
        self._prefixes.check_integrity(sequences)
        rows = self.groups[0].tables.array.shape[0]
        if sorted([*self._rows, *self._sequences]) != list(range(rows)):
            raise IntegrityError("a row of the tables is lost, or in two places")
