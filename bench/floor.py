"""Compare an iteration with the machine's lower bound: `python -m orcastream.bench.floor --model DIR`.

For each batch: the median decode iteration of the engine, all requests at the same context, and its floor, the sum of

- the fastest available linear layers, for the model's shapes (queries, keys and values merged, as well as gate and up)
  at that number of rows, times the number of layers, each with a weight that is in no cache;
- the head for the sampled rows;
- keys and values of all contexts, at the rate at which this machine copies memory.

The same for prompts, with one iteration that computes a whole prompt. The remainder is split into the host's work,
attention (measured alone, beyond the copy of its cache), and everything else.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from orcastream.bench.flags import at_least
from orcastream.bench.linears import Case, measure
from orcastream.engine import EngineConfig, OrcaEngine, Request
from orcastream.engine.attention import AttentionCall, choose_backend
from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import LayerGroup, LayerShape
from orcastream.schemas.sampling import SamplingParams

BLOCK_SIZE = 16
COLD_LAYERS = 8
"""Number of caches that attention alternates between, like a model's layers."""


@dataclass(frozen=True)
class Shape:
    """The shape of a standard decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int

    @classmethod
    def of(cls, config: PretrainedConfig) -> "Shape":
        """Return a configuration's shape. Raises AttributeError for another kind of model."""
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            head_size,
            config.intermediate_size,
            config.vocab_size,
        )

    def linears(self) -> list[tuple[int, int]]:
        """Return columns and depth of one layer's linear layers."""
        return [
            ((self.heads + 2 * self.kv_heads) * self.head_size, self.hidden),
            (self.hidden, self.heads * self.head_size),
            (2 * self.intermediate, self.hidden),
            (self.hidden, self.intermediate),
        ]

    def kv_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        """Return the size of keys and values of that many tokens in all layers."""
        return tokens * self.layers * 2 * self.kv_heads * self.head_size * dtype.itemsize


@dataclass(frozen=True)
class Load:
    """`batch` requests, each computing `length` tokens after `context` others."""

    batch: int
    length: int
    context: int

    def __str__(self) -> str:
        if self.length > 1:
            return f"prefill of {self.length}"
        return f"decode, batch {self.batch}, context {self.context}"


@dataclass(frozen=True)
class Parts:
    """Milliseconds of one iteration."""

    measured: float
    linears: float
    head: float
    cache: float
    attention: float
    host: float

    @property
    def floor(self) -> float:
        """The machine's lower bound."""
        return self.linears + self.head + self.cache

    def row(self, load: Load) -> str:
        """Return one line of the table."""
        more = max(self.attention - self.cache, 0.0)
        rest = self.measured - self.floor - more - self.host
        figures = (self.measured, self.floor, self.linears, self.head, self.cache, more, self.host, rest)
        return f"{load!s:<32} " + " ".join(f"{each:9.2f}" for each in figures) + f" {self.measured / self.floor:7.2f}"


HEADINGS = ("measured", "floor", "linears", "head", "KV", "attention+", "host", "rest")


def copy_rate() -> float:
    """Return the bytes per second of a plain copy, each byte counted once."""
    source = torch.ones(64 << 20, dtype=torch.float32)
    target = torch.empty_like(source)
    times = []
    for _ in range(7):
        began = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - began)
    return source.nbytes / statistics.median(times)


def linear_ms(rows: int, columns: int, depth: int, dtype: torch.dtype) -> float:
    """Return the time of the fastest available implementation."""
    return min(measure(Case(rows, columns, depth), dtype, [None], 0.15).values()) * 1e3


def attention_ms(shape: Shape, load: Load, dtype: torch.dtype) -> float:
    """Return the time of all layers, measured one at a time with alternating caches."""
    device = torch.device("cpu")
    backend = choose_backend("auto", device, dtype)
    longest = load.context + load.length
    num_blocks = load.batch * (longest // BLOCK_SIZE + 2)
    layer_shape = LayerShape(shape.heads, shape.kv_heads, shape.head_size, shape.head_size)
    layers = [backend.allocate(layer_shape, num_blocks, BLOCK_SIZE, dtype, device) for _ in range(COLD_LAYERS)]
    cache = KVCache(
        [LayerGroup(None, (0,))],
        [num_blocks],
        block_size=BLOCK_SIZE,
        max_sequences=load.batch,
        max_model_len=longest,
        longest_span=longest,
        prefix_cache=False,
    )
    spans = []
    for _ in range(load.batch):
        sequence = cache.sequence_of(1)
        cache.grow(sequence, 0, longest)
        spans.append(SpanTokens(sequence, [0] * load.length, load.context, 1))
    plan = backend.plan(FlatBatch.build(spans, cache, device), dtype)
    tokens = load.batch * load.length
    query, key, value = (
        torch.randn(tokens, heads, shape.head_size).to(dtype).transpose(0, 1)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    call = AttentionCall(scale=shape.head_size**-0.5, group=0)
    times = []
    for _ in range(5):
        for layer in layers:
            began = time.perf_counter()
            backend.attend(plan, layer, query, key, value, call)
            times.append(time.perf_counter() - began)
    return statistics.median(times[len(layers) :]) * 1e3 * shape.layers


class Iterations:
    """Measurement of the engine's iterations under one load."""

    def __init__(self, engine: OrcaEngine, load: Load, repeats: int) -> None:
        self._engine = engine
        self._load = load
        self._repeats = repeats
        self.total: list[float] = []
        self.host: list[float] = []

    def run(self) -> None:
        """Measure the iterations; the engine is empty afterwards."""
        rounds = 1 if self._load.length == 1 else self._repeats
        for number in range(rounds + (self._load.length > 1)):
            self._submit()
            while self._engine.has_work:
                self._engine.step()
                if number or self._load.length == 1:
                    self._note()

    def _submit(self) -> None:
        load = self._load
        known = load.context if load.length == 1 else load.length
        outputs = self._repeats + 1 if load.length == 1 else 1
        for index in range(load.batch):
            prompt = tuple(5 + (index * 7919 + position * 31) % 400 for position in range(known))
            sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=outputs)
            self._engine.submit(Request(f"{load}-{index}", prompt, sampling))

    def _note(self) -> None:
        record = self._engine.last_iteration
        if record is None or record.num_tokens != self._load.batch * self._load.length:
            return
        if self._load.length == 1 and record.prefill_tokens:
            return
        self.total.append(record.total_s * 1e3)
        self.host.append((record.total_s - record.forward_s) * 1e3)


def examine(engine: OrcaEngine, shape: Shape, load: Load, repeats: int) -> Parts:
    """Measure one load and its floor."""
    dtype = engine.model.dtype
    rows = load.batch * load.length
    iterations = Iterations(engine, load, repeats)
    iterations.run()
    linears = sum(linear_ms(rows, columns, depth, dtype) for columns, depth in shape.linears()) * shape.layers
    head = linear_ms(load.batch, shape.vocabulary, shape.hidden, dtype)
    cache = shape.kv_bytes(load.batch * (load.context + load.length), dtype) / copy_rate() * 1e3
    attention = attention_ms(shape, load, dtype)
    iterations.run()
    return Parts(
        statistics.median(iterations.total), linears, head, cache, attention, statistics.median(iterations.host)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="orcastream.bench.floor", description=__doc__.split("\n")[0] if __doc__ else ""
    )
    parser.add_argument("--model", required=True, help="a directory")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--batches", type=at_least(1), nargs="*", default=(1, 4, 16, 64))
    parser.add_argument("--context", type=at_least(1), default=192, help="tokens of context of decodes (default: 192)")
    parser.add_argument("--prefills", type=at_least(2), nargs="*", default=(128, 512, 2048))
    parser.add_argument("--repeats", type=at_least(1), default=12, help="iterations, twice (default: 12)")
    options = parser.parse_args(arguments)
    loads = [Load(batch, 1, options.context) for batch in options.batches]
    loads += [Load(1, length, 0) for length in options.prefills]
    if not loads:
        parser.error("--batches, --prefills: got none, allowed: at least one of either")
    engine = OrcaEngine.load(
        EngineConfig(
            model=options.model,
            dtype=options.dtype,
            max_batch_size=max(load.batch for load in loads),
            # All prompts in one iteration, so that all requests decode at the same context.
            max_num_batched_tokens=max(load.batch * max(load.length, load.context) for load in loads),
            prefix_cache=False,
        )
    )
    engine.settle()
    shape = Shape.of(engine.model.config)
    print(f"{torch.get_num_threads()} threads, {options.dtype}, copy {copy_rate() / 1e9:.1f} GB/s; milliseconds")
    print(f"{'':<32} " + " ".join(f"{each:>9}" for each in HEADINGS) + "   ratio")
    with torch.inference_mode():
        for load in loads:
            print(examine(engine, shape, load, options.repeats).row(load), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
