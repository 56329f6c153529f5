"""A cache whose slots hold the inputs that determine a token's keys, so that every read can be checked."""

from dataclasses import dataclass, field

import torch

from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.digest import ContentChain
from orcastream.engine.kv.layout import LayerGroup
from orcastream.engine.kv.sequence import Sequence, SwappedSequence
from orcastream.engine.kv.store import KVStore, LayerCache
from orcastream.engine.kv.tables import IntArray

BLOCK_SIZE = 2
LONGEST_SPAN = 6
MAX_MODEL_LEN = 24


@dataclass(eq=False)
class Live:
    """A sequence of the model: its tokens, and the content that its slots must hold."""

    tenant: str
    chain: ContentChain
    tokens: list[int]
    writer: int
    contents: list[int] = field(default_factory=list)
    kv: Sequence | None = None
    swapped: SwappedSequence | None = None

    @property
    def computed(self) -> int:
        return len(self.contents)

    @property
    def open(self) -> Sequence:
        assert self.kv is not None
        return self.kv


def content(tenant: str, before: int, token: int) -> int:
    """Return the content that determines the keys of a token: everything before it."""
    return hash((tenant, before, token))


class ContentCache:
    """A KVCache over real tensors: content in the keys, and the writer in the values."""

    def __init__(self, windows: tuple[int | None, ...], num_blocks: tuple[int, ...], host: tuple[int, ...]) -> None:
        def layer(blocks: int) -> LayerCache:
            return LayerCache(*(torch.zeros(1, blocks, BLOCK_SIZE, 1, dtype=torch.int64) for _ in range(2)))

        self.layers = [layer(blocks) for blocks in num_blocks]
        self.cache = KVCache(
            [LayerGroup(window, (index,)) for index, window in enumerate(windows)],
            num_blocks,
            block_size=BLOCK_SIZE,
            max_sequences=4,
            max_model_len=MAX_MODEL_LEN,
            longest_span=LONGEST_SPAN,
            stores=[KVStore([layer], slots) for layer, slots in zip(self.layers, host, strict=True)],
            num_host_slots=host,
        )

    def write(self, live: Live, count: int) -> None:
        """Compute `count` known tokens: fill their slots in all groups."""
        for position in range(live.computed, live.computed + count):
            before = live.contents[-1] if live.contents else 0
            live.contents.append(content(live.tenant, before, live.tokens[position]))
            for group, layer in zip(self.cache.groups, self.layers, strict=True):
                slot = self._slot(group.tables.array[live.open.row], position)
                layer.keys.view(-1)[slot] = live.contents[-1]
                layer.values.view(-1)[slot] = live.writer

    def count_copies(self) -> list[tuple[int, int]]:
        """Return a list that grows by source and target of each block copied on the device from here on."""
        copied: list[tuple[int, int]] = []
        for group in self.cache.groups:
            assert group.store is not None
            copy = group.store.copy
            group.store.copy = lambda a, b, copy=copy: (copied.append((a, b)), copy(a, b))[1]  # type: ignore[method-assign, misc]
        return copied

    def check(self, live: Live) -> None:
        """Check that the next query sees its own tokens, in every group."""
        for group, layer in zip(self.cache.groups, self.layers, strict=True):
            first = 0 if group.window is None else max(0, live.computed - group.window + 1)
            assert self._read(group.tables.array[live.open.row], layer.keys, first, live) == live.contents[first:]

    def writers(self, live: Live) -> set[int]:
        """Return the writers of the tokens that its next query sees."""
        return {
            writer
            for group, layer in zip(self.cache.groups, self.layers, strict=True)
            for writer in self._read(
                group.tables.array[live.open.row],
                layer.values,
                0 if group.window is None else max(0, live.computed - group.window + 1),
                live,
            )
        }

    def _read(self, row: IntArray, part: torch.Tensor, first: int, live: Live) -> list[int]:
        flat = part.numpy().reshape(-1)
        return [int(flat[self._slot(row, position)]) for position in range(first, live.computed)]

    @staticmethod
    def _slot(row: IntArray, position: int) -> int:
        return int(row[position // BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE
