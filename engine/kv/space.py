"""The capacity of the KV cache: free blocks and rows, and whether a sequence fits."""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from orcastream.engine.kv.digest import ContentChain
from orcastream.engine.kv.group import GroupCache
from orcastream.engine.kv.layout import LayerGroup
from orcastream.engine.kv.prefix import PrefixCache
from orcastream.engine.kv.sequence import Sequence
from orcastream.engine.kv.swap_space import SwapSpace

if TYPE_CHECKING:  # code that needs only the names of policies does not wait for torch
    from orcastream.engine.kv.store import KVStore


class CacheSpace:
    """Blocks of all layer groups and rows of their tables: how many exist, and whether more fits.

    The read-only half of KVCache.
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
        """`num_blocks` and `num_host_slots` are per group; without `stores` (one per group) nothing is ever copied.

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
        self._swap_space = SwapSpace(self.groups)

    @property
    def blocks_total(self) -> int:
        """Blocks of all groups."""
        return sum(group.pool.num_blocks for group in self.groups)

    @property
    def blocks_used(self) -> int:
        """Blocks that sequences hold."""
        return sum(group.pool.num_used for group in self.groups)

    @property
    def blocks_reusable(self) -> int:
        """Free blocks that keep their content until they are needed."""
        return sum(group.pool.num_reusable for group in self.groups)

    def slots_filled(self, sequences: Iterable[tuple[Sequence, int]]) -> int:
        """Return the token slots in held blocks that hold a token; `sequences` are all open ones with their tokens."""
        empty = sum(
            (len(sequence) * self.block_size - num_tokens) * len(self.groups) for sequence, num_tokens in sequences
        )
        return self.blocks_used * self.block_size - empty

    @property
    def num_sequences(self) -> int:
        """Open sequences, not counting swapped-out ones."""
        return len(self._sequences)

    @property
    def max_tokens(self) -> int:
        """Most tokens that one sequence can reach."""
        width = self.groups[0].tables.array.shape[1]
        return min(self._most_tokens(group, width) for group in self.groups)

    def _most_tokens(self, group: GroupCache, width: int) -> int:
        blocks = group.pool.num_blocks
        return (width if group.most_blocks(width * self.block_size) <= blocks else blocks) * self.block_size

    def most_blocks(self, num_tokens: int) -> list[int]:
        """Return, per group, the most blocks that a sequence of up to `num_tokens` tokens holds at any time."""
        return [group.most_blocks(num_tokens) for group in self.groups]

    def fits(
        self,
        chain: ContentChain,
        num_tokens: int,
        beside: Iterable[tuple[Sequence, int]] = (),
        *,
        matchable: int | None = None,
    ) -> bool:
        """Whether a new sequence of `num_tokens` known tokens, plus one, fits.

        Blocks that it can reuse for its first `matchable` tokens (default: all) count. Blocks that `beside`, open
        sequences with the tokens that each will reach, still lack are reserved.
        """
        matched = None
        for group, free in zip(self.groups, self._free_beside(beside), strict=True):
            if group.most_blocks(num_tokens + 1) > free:
                matched = self.match(chain, matchable or num_tokens) if matched is None else matched
                if group.new_blocks(chain.digests, num_tokens + 1, matched) > free:
                    return False
        return bool(self._rows)

    def may_lack(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether `sequence`, which will reach `num_tokens` tokens, lacks blocks in any group, or will as it grows."""
        if len(sequence) * self.block_size < num_tokens:
            return True
        return any(group.most_blocks(num_tokens) > group.num_held(sequence) for group in self.groups)

    def _free_beside(self, beside: Iterable[tuple[Sequence, int]]) -> list[int]:
        """Return the free blocks per group, minus those that `beside`, sequences with final tokens, still lack."""
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
