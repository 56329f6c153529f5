"""The KV cache: one owner of blocks, tables, names, tensors and host memory."""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from engine.errors import IntegrityError, OutOfBlocks
from engine.kv.digest import ContentChain
from engine.kv.group import GroupCache
from engine.kv.layout import LayerGroup
from engine.kv.prefix import PrefixCache
from engine.kv.sequence import Sequence, SwappedSequence

if TYPE_CHECKING:  # torch is not needed to look at the names of policies
    from engine.kv.store import KVStore


class KVCache:
    """Keys and values of all requests that run, in blocks of `block_size` tokens, and of prefixes worth keeping.

    | what | where |
    |---|---|
    | which layers share tables | groups by window; a group's pool, tables and tensors are one GroupCache |
    | what a request holds | a Sequence: `open`, `grow` before tokens are computed, `computed` after, `close` |
    | who may write | the only holder of a block; `grow` copies a shared one first (copy on write) |
    | what can be reused | blocks by their content (PrefixCache), until evicted, least recently used first |
    | what is away | `swap_out` and `swap_in`; evicted named blocks go to host memory, too, where there is some |

    Nothing here knows requests or scheduling. Numbers of tokens count from a sequence's first one.
    """

    def __init__(
        self,
        groups: Items[LayerGroup],
        num_blocks: Items[int],
        *,
        block_size: int,
        max_sequences: int,
        max_model_len: int,
        longest_span: int,
        stores: "Items[KVStore] | None" = None,
        prefix_cache: bool = True,
        num_host_slots: Items[int] | None = None,
    ) -> None:
        """`num_blocks` and `num_host_slots` per group; without `stores` (one per group) nothing is ever copied.

        `longest_span` is the most tokens that one iteration computes of one sequence.
        """
        if block_size < 1:
            raise ValueError(f"block_size: got {block_size}, allowed: at least 1")
        host = num_host_slots or [0] * len(groups)
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.groups = [
            GroupCache(
                index,
                group,
                num_blocks=blocks,
                block_size=block_size,
                num_rows=max_sequences,
                width=-(-max_model_len // block_size),
                longest_span=longest_span,
                store=None if stores is None else stores[index],
                num_host_slots=slots,
            )
            for index, (group, blocks, slots) in enumerate(zip(groups, num_blocks, host, strict=True))
        ]
        self._prefixes = PrefixCache(self.groups, block_size, enabled=prefix_cache)
        self._rows = list(range(max_sequences - 1, -1, -1))
        self._sequences: dict[int, Sequence] = {}
        self._swapped: set[SwappedSequence] = set()
        self.copies = 0
        """Blocks copied because a holder of a shared one wrote to it."""

    # -- what there is ------------------------------------------------------------------------------------------

    @property
    def blocks_total(self) -> int:
        """Blocks of all groups."""
        return sum(group.pool.num_blocks for group in self.groups)

    @property
    def blocks_used(self) -> int:
        """Blocks that some sequence holds."""
        return sum(group.pool.num_used for group in self.groups)

    @property
    def blocks_reusable(self) -> int:
        """Free blocks that keep their content until they are needed."""
        return sum(group.pool.num_reusable for group in self.groups)

    def slots_filled(self, sequences: Iterable[tuple[Sequence, int]]) -> int:
        """Token slots of held blocks that hold a token; `sequences` are all that are open, with their tokens."""
        empty = sum(
            (len(sequence) * self.block_size - num_tokens) * len(self.groups) for sequence, num_tokens in sequences
        )
        return self.blocks_used * self.block_size - empty

    @property
    def num_sequences(self) -> int:
        """Sequences that are open, swapped-out ones not among them."""
        return len(self._sequences)

    @property
    def max_tokens(self) -> int:
        """Most tokens that one sequence can come to."""
        width = self.groups[0].tables.array.shape[1]
        return min(self._most_tokens(group, width) for group in self.groups)

    def _most_tokens(self, group: GroupCache, width: int) -> int:
        blocks = group.pool.num_blocks
        return (width if group.most_blocks(width * self.block_size) <= blocks else blocks) * self.block_size

    # -- whether it fits ----------------------------------------------------------------------------------------

    def most_blocks(self, num_tokens: int) -> list[int]:
        """Per group the most blocks that a sequence of up to `num_tokens` tokens holds at any one time."""
        return [group.most_blocks(num_tokens) for group in self.groups]

    def fits(self, chain: ContentChain, num_tokens: int, beside: Iterable[tuple[Sequence, int]] = ()) -> bool:
        """Whether a new sequence of `num_tokens` known tokens, and one more, finds room.

        What it can reuse counts; of `beside`, open sequences with the tokens that each will come to, what they still
        lack is set aside.
        """
        matched = None
        for group, free in zip(self.groups, self._free_beside(beside), strict=True):
            if group.most_blocks(num_tokens + 1) > free:
                matched = self.match(chain, num_tokens) if matched is None else matched
                if group.new_blocks(chain.digests, num_tokens + 1, matched) > free:
                    return False
        return bool(self._rows)

    def _free_beside(self, beside: Iterable[tuple[Sequence, int]]) -> list[int]:
        """Free blocks per group, less what `beside`, sequences with the tokens that they will come to, still lack."""
        free = [group.pool.num_free for group in self.groups]
        for sequence, tokens in beside:
            for group in self.groups:
                free[group.index] -= max(0, group.most_blocks(tokens) - group.num_held(sequence))
        return free

    def match(self, chain: ContentChain, num_tokens: int) -> int:
        """See PrefixCache."""
        return self._prefixes.match(chain, num_tokens)

    def awaits(self, chain: ContentChain, num_tokens: int) -> bool:
        """See PrefixCache."""
        return self._prefixes.awaits(chain, num_tokens)

    # -- the life of a sequence ---------------------------------------------------------------------------------

    def open(self, chain: ContentChain, num_tokens: int, tokens: Items[int] = ()) -> tuple[Sequence, int]:
        """A sequence for `num_tokens` known tokens, and how many of them it has already: those of a cached prefix.

        With `tokens` themselves the match may end inside a block, which is copied. There must be a free row: `fits`.
        """
        sequence = self._new(chain, self._prefixes.generation)
        cached = self._prefixes.adopt(sequence, num_tokens, tokens)
        sequence.capacity = len(sequence) * self.block_size
        return sequence, cached

    def _new(self, chain: ContentChain, generation: int) -> Sequence:
        sequence = Sequence(self._rows.pop(), len(self.groups), chain, generation)
        self._sequences[sequence.row] = sequence
        return sequence

    def grow(self, sequence: Sequence, start: int, stop: int) -> bool:
        """Let tokens `start` … `stop - 1` be written; False, and nothing changed, where blocks are lacking.

        Tokens before `start` that no later query can see are given up in either case.
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
                self.copies += group.own(sequence, copied)
            if missing == 1:
                group.append(sequence, group.pool.take_one())
            else:
                for block in group.pool.take(missing):
                    group.append(sequence, block)
        sequence.capacity = len(sequence) * size
        return True

    def computed(self, sequence: Sequence, tokens: Items[int], num_computed: int) -> None:
        """The first `num_computed` of `tokens` are in the cache: full blocks can be reused from now on."""
        self._prefixes.name(sequence, tokens, num_computed)

    def close(self, sequence: Sequence, computed: Items[int] = ()) -> None:
        """Give everything back; what has a name can be reused until it is evicted.

        So can the last block, though it is not full, where the tokens that have been `computed` are told.
        """
        self._prefixes.name_tail(sequence, computed)
        self._truncate(sequence, 0)
        self._prefixes.promise_no_more(sequence, sequence.num_named)
        del self._sequences[sequence.row]
        self._rows.append(sequence.row)

    def discard(self, sequence: Sequence) -> None:
        """Close a sequence whose keys and values are not to be trusted: nothing of it is reused."""
        for digest in [*sequence.chain.digests[: sequence.num_named], *sequence.chain.tails]:
            for group in self.groups:
                group.forget(digest)
        self.close(sequence)

    def sequence_of(self, num_tokens: int) -> Sequence:
        """A new sequence with room for `num_tokens` tokens; OutOfBlocks where there is none."""
        sequence, _ = self.open(ContentChain("", ""), num_tokens)
        if not self.grow(sequence, 0, num_tokens):
            self.close(sequence)
            raise OutOfBlocks(f"{num_tokens} tokens do not fit")
        return sequence

    def fork(self, sequence: Sequence, num_tokens: int) -> Sequence | None:
        """A second sequence of the first `num_tokens`, which shares blocks until one writes there; None: no row."""
        length = self._blocks_seen_from(sequence, num_tokens)
        if not self._rows:
            return None
        twin = self._new(sequence.chain.copy(num_tokens // self.block_size), sequence.generation)
        for group in self.groups:
            first = sequence.first[group.index]
            group.skip(twin, first)
            for block in sequence.blocks[group.index][first:length]:
                group.pool.hold(block)
                group.append(twin, block)
        twin.num_named = twin.num_promised = min(sequence.num_named, num_tokens // self.block_size)
        sequence.capacity = twin.capacity = 0  # whoever writes next asks `grow`
        return twin

    def truncate(self, sequence: Sequence, num_tokens: int) -> None:
        """Take tokens back: only the first `num_tokens` stay. They must not have been named."""
        length = self._blocks_seen_from(sequence, num_tokens)
        full = num_tokens // self.block_size
        if full < sequence.num_named:
            raise IntegrityError(f"{num_tokens} tokens are fewer than {sequence.num_named} named blocks hold")
        self._truncate(sequence, length)
        self._prefixes.promise_no_more(sequence, full)
        sequence.chain.cut(full)
        sequence.capacity = min(sequence.capacity, num_tokens)  # the last block may be shared: `grow` looks

    def _blocks_seen_from(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks of the first `num_tokens` tokens; IntegrityError unless it has all that the next query can see."""
        length = -(-num_tokens // self.block_size)
        if length > len(sequence):
            raise IntegrityError(f"a sequence with {len(sequence)} blocks does not hold {num_tokens} tokens")
        if any(sequence.first[group.index] > group.first_visible(num_tokens) for group in self.groups):
            raise IntegrityError(f"blocks that token {num_tokens} can see were given back")
        return length

    def _truncate(self, sequence: Sequence, length: int) -> None:
        for group in self.groups:
            group.truncate(sequence, length)

    # -- host memory --------------------------------------------------------------------------------------------

    def can_swap_out(self, sequence: Sequence) -> bool:
        """Whether host memory has room for all that it holds."""
        return all(group.num_held(sequence) <= group.host.num_free for group in self.groups)

    def swap_out(self, sequence: Sequence) -> SwappedSequence:
        """Move a sequence to host memory, where `can_swap_out` found room."""
        swapped = SwappedSequence(
            len(sequence),
            list(sequence.first),
            [group.swap_out(sequence.blocks[group.index][sequence.first[group.index] :]) for group in self.groups],
            sequence.chain,
            sequence.num_named,
            sequence.generation,
        )
        self.close(sequence)
        self._swapped.add(swapped)
        return swapped

    def can_swap_in(self, swapped: SwappedSequence, beside: Iterable[tuple[Sequence, int]] = ()) -> bool:
        """Whether it finds a row, its blocks, and one more to go on with unless it has all there are.

        What `beside` still lack is set aside, as in `fits`.
        """
        return bool(self._rows) and all(
            min(len(slots) + 1, group.pool.num_blocks) <= free
            for group, slots, free in zip(self.groups, swapped.slots, self._free_beside(beside), strict=True)
        )

    def swap_in(self, swapped: SwappedSequence) -> Sequence:
        """Bring a sequence back, where `can_swap_in` found room."""
        self._swapped.remove(swapped)
        sequence = self._new(swapped.chain, swapped.generation)
        named = swapped.num_named if swapped.generation == self._prefixes.generation else 0
        for group, first, slots in zip(self.groups, swapped.first, swapped.slots, strict=True):
            group.skip(sequence, first)
            group.swap_in(sequence, slots, swapped.chain.digests[first:named])
        sequence.num_named = sequence.num_promised = swapped.num_named
        sequence.capacity = swapped.length * self.block_size
        return sequence

    def drop(self, swapped: SwappedSequence) -> None:
        """Its request has ended: free its host memory."""
        self._swapped.remove(swapped)
        for group, slots in zip(self.groups, swapped.slots, strict=True):
            for slot in slots:
                group.host.unpin(slot)

    # -- the rest -----------------------------------------------------------------------------------------------

    def forget_prefixes(self) -> None:
        """Nothing that was computed so far is reused any more, on the device or in host memory.

        Sequences that are open or swapped out go on, but what they compute is not shared, as it follows from the old.
        """
        self._prefixes.forget_all(self._sequences.values())

    def check_integrity(self) -> None:
        """IntegrityError where sequences, pools, tables, promises and host memory disagree."""
        sequences = list(self._sequences.values())
        for group in self.groups:
            pinned = [slot for swapped in self._swapped for slot in swapped.slots[group.index]]
            group.check_integrity(sequences, pinned)
        for sequence in sequences:
            if len({len(blocks) for blocks in sequence.blocks}) != 1:
                raise IntegrityError("the tables of a sequence differ in length")
            if sequence.capacity > len(sequence) * self.block_size:
                raise IntegrityError("a sequence may write more tokens than its blocks hold")
        self._prefixes.check_integrity(sequences)
        rows = self.groups[0].tables.array.shape[0]
        if sorted([*self._rows, *self._sequences]) != list(range(rows)):
            raise IntegrityError("a row of the tables is lost, or in two places")
