"""How many blocks the KV cache has."""

import torch

from engine.batch.flat_batch import FlatBatch, Rows
from engine.kv.block_table import BlockTable
from engine.kv.host_memory_size import available_host_memory
from engine.model.runner import ModelRunner

_CPU_MOST_BYTES = 2 << 30
_CPU_SHARE = 0.25
"""Of the memory that is available; the rest of the machine needs its own."""
_CUDA_SHARE = 0.9
"""Of the whole memory of the device, for weights, activations and cache together."""


def measure_num_blocks(
    runner: ModelRunner,
    *,
    block_size: int,
    kv_cache_memory: int | None,
    token_budget: int,
    max_batch_size: int,
    max_model_len: int,
) -> int:
    """Blocks that fit into `kv_cache_memory` bytes, or else into what the device has to spare.

    Never more than `max_batch_size` requests of `max_model_len` tokens can hold. ValueError if not one block fits.
    """
    most = max_batch_size * -(-max_model_len // block_size)
    memory = kv_cache_memory
    if memory is None and runner.device.type == "cuda":
        memory = _spare_cuda_memory(runner, block_size, token_budget, max_batch_size, max_model_len)
    elif memory is None:
        memory = _spare_host_memory()
    num_blocks = min(most, memory // runner.bytes_per_block(block_size))
    if num_blocks < 1:
        raise ValueError(
            f"kv_cache_memory: got {memory} bytes, allowed: at least {runner.bytes_per_block(block_size)}, one block"
        )
    return num_blocks


def _spare_host_memory() -> int:
    """Bytes that the cache of a CPU gets where nobody says how many."""
    available = available_host_memory()
    return _CPU_MOST_BYTES if available is None else min(_CPU_MOST_BYTES, int(available * _CPU_SHARE))


def _spare_cuda_memory(
    runner: ModelRunner, block_size: int, token_budget: int, max_batch_size: int, max_model_len: int
) -> int:
    """Bytes left beside the weights and the peak of the largest iteration, measured by running it."""
    blocks_each = -(-min(token_budget, max_model_len) // block_size)
    runner.allocate(max_batch_size * blocks_each, block_size)
    torch.cuda.synchronize(runner.device)
    torch.cuda.reset_peak_memory_stats(runner.device)
    before = torch.cuda.memory_allocated(runner.device)
    batch = FlatBatch.build(
        _largest_spans(token_budget, max_batch_size, max_model_len, block_size), block_size, runner.device
    )
    # The sampler's copies of the logits (scores, noise, sorted) weigh a few times the logits themselves.
    logits = runner.forward(batch).float()
    activations = torch.cuda.max_memory_allocated(runner.device) - before + 6 * logits.nbytes
    del logits
    runner.allocate(0, block_size)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(runner.device)
    return max(0, int(free - total * (1 - _CUDA_SHARE)) - activations)


def _largest_spans(token_budget: int, max_batch_size: int, max_model_len: int, block_size: int) -> list[Rows]:
    """Spans that use the token budget up, every one with a row of logits."""
    spans, left, next_block = [], token_budget, 0
    for index in range(max_batch_size):
        length = min(max_model_len, max(1, left // (max_batch_size - index)))
        if not left:
            break
        table = BlockTable()
        for _ in range(-(-length // block_size)):
            table.append(next_block)
            next_block += 1
        spans.append(Rows([0] * length, 0, table, True))
        left -= length
    return spans
