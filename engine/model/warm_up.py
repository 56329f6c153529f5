"""The warm-up of a GPU, so that no request waits for a compiler."""

from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.digest import ContentChain
from orcastream.engine.model.runner import ModelRunner


def warm_up(runner: ModelRunner, cache: KVCache) -> None:
    """Compute a prefill and a decode in a `cache` without sequences, and leave none in it.

    Kernels are compiled when they are first called, each for some seconds, and a request is lost to its worker if an
    iteration takes longer than a lease. The self-check and captured graphs do not call all of them: the former has
    another block size and, with 8 bits, another format of the cache, the latter have no prefill.
    """
    length = min(3, cache.max_tokens)
    sequence, _ = cache.open(ContentChain("", ""), length)
    for start, stop in ((0, length - 1), (length - 1, length)):
        if start < stop and cache.grow(sequence, start, stop):
            span = SpanTokens(sequence, [0] * (stop - start), start, num_logits=1)
            runner.compute(FlatBatch.build([span], cache, runner.device))
    cache.close(sequence)
