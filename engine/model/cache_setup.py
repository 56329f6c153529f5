"""Sets up the KV cache of a model: its size and its tensors."""

import torch

from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.batch.prompt_rows import ROWS_AT_ONCE
from orcastream.engine.config import EngineConfig
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import group_layers
from orcastream.engine.kv.size import blocks_that_fit, refuse_more_than_there_is, spare_host_memory
from orcastream.engine.kv.store import KVStore
from orcastream.engine.model.runner import ModelRunner
from orcastream.engine.schedule.plan import MOST_PROMPT_ROWS

_CUDA_SHARE = 0.9
"""Share of the device's total memory for weights, activations and cache together."""


def make_cache(runner: ModelRunner, config: EngineConfig, max_model_len: int) -> KVCache:
    """Return a cache of `kv_cache_memory` bytes, or else of the device's spare memory; `runner` computes with it.

    Never more blocks than `max_batch_size` requests of `max_model_len` tokens can hold. Raises ValueError if none fits,
    or if host or device has less memory than requested.
    """
    memory = config.kv_cache_memory
    if memory is None:
        on_cuda = runner.device.type == "cuda"
        memory = _spare_cuda_memory(runner, config, max_model_len) if on_cuda else spare_host_memory()
    return _allocate(runner, config, max_model_len, memory)


def _allocate(runner: ModelRunner, config: EngineConfig, max_model_len: int, memory: int) -> KVCache:
    groups = group_layers(runner.shapes, max_model_len)
    longest_span = min(config.token_budget_tokens, max_model_len)
    sizes = [sum(runner.bytes_per_block(layer, config.block_size) for layer in group.layers) for group in groups]
    num_blocks = blocks_that_fit(
        memory,
        groups,
        sizes,
        block_size=config.block_size,
        max_batch_size=config.num_places,
        max_model_len=max_model_len,
        longest_span=longest_span,
    )
    cached = sum(blocks * size for blocks, size in zip(num_blocks, sizes, strict=True))
    refuse_more_than_there_is(cached, config.host_cache_memory, _free_memory(runner.device))
    runner.allocate(groups, num_blocks, config.block_size)
    host_slots = _host_slots(config.host_cache_memory, num_blocks, sizes)
    stores = [
        KVStore([runner.layers[layer] for layer in group.layers], slots)
        for group, slots in zip(groups, host_slots, strict=True)
    ]
    return KVCache(
        groups,
        num_blocks,
        block_size=config.block_size,
        max_sequences=config.num_places,
        max_model_len=max_model_len,
        longest_span=longest_span,
        stores=stores,
        prefix_cache=config.prefix_cache,
        num_host_slots=host_slots,
    )


def _free_memory(device: torch.device) -> int | None:
    """Return the free bytes of `device`; None if it uses the host's memory."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def _host_slots(memory: int, num_blocks: list[int], sizes: list[int]) -> list[int]:
    """Return the host slots per group for `memory` bytes, in proportion to the blocks on the device."""
    total = sum(blocks * size for blocks, size in zip(num_blocks, sizes, strict=True))
    return [blocks * memory // total for blocks in num_blocks]


def _spare_cuda_memory(runner: ModelRunner, config: EngineConfig, max_model_len: int) -> int:
    """Return the bytes left after the weights and the peak of the largest iteration, measured by running it."""
    spans = _largest_lengths(config.token_budget_tokens, config.num_places, max_model_len)
    blocks = sum(-(-length // config.block_size) for length in spans)
    groups = group_layers(runner.shapes, max_model_len)
    runner.allocate(groups, [blocks] * len(groups), config.block_size)
    cache = KVCache(
        groups,
        [blocks] * len(groups),
        block_size=config.block_size,
        max_sequences=len(spans),
        max_model_len=max_model_len,
        longest_span=max(spans),
        prefix_cache=False,
    )
    torch.cuda.synchronize(runner.device)
    torch.cuda.reset_peak_memory_stats(runner.device)
    before = torch.cuda.memory_allocated(runner.device)
    logits = runner.forward(_largest_batch(spans, cache, runner.device))
    # Copies (scores, noise, sorted) of the logits that are sampled, or of the prompt logits that are ranked together,
    # take several times the memory of these logits.
    copied = logits[: max(len(spans), ROWS_AT_ONCE)].float()
    activations = torch.cuda.max_memory_allocated(runner.device) - before + 6 * copied.nbytes
    del logits, copied
    # What stays allocated, such as the workspace of a library, is not free below either.
    activations -= torch.cuda.memory_allocated(runner.device) - before
    runner.allocate(groups, [0] * len(groups), config.block_size)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(runner.device)
    set_aside = 0 if runner.adapters is None else runner.adapters.most_bytes
    return max(0, int(free - total * (1 - _CUDA_SHARE)) - activations - set_aside)


def _largest_lengths(token_budget: int, max_batch_size: int, max_model_len: int) -> list[int]:
    """Return lengths of spans that use up the token budget."""
    lengths, left = [], token_budget
    for index in range(max_batch_size):
        if not left:
            break
        lengths.append(min(max_model_len, max(1, left // (max_batch_size - index))))
        left -= lengths[-1]
    return lengths


def _largest_batch(lengths: list[int], cache: KVCache, device: torch.device) -> FlatBatch:
    """Return a batch of spans of these lengths, with the most prompt logprobs that an iteration may report.

    Each span has a row of logits to sample from; the first ones also have rows for MOST_PROMPT_ROWS more tokens.
    """
    laid, left = [], MOST_PROMPT_ROWS
    for length in lengths:
        told = min(length - 1, left)
        laid.append(SpanTokens(cache.sequence_of(length), [0] * length, 0, 1 + told))
        left -= told
    return FlatBatch.build(laid, cache, device)
