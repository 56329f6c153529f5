"""Measure the loss of accuracy by an 8-bit KV cache: `python -m orcastream.bench.kv_accuracy`.

For the demo model and for random models of several shapes, answers are generated with keys and values in the model's
own format, greedily and at temperature 1. Then the same tokens are computed with the cache in each format, one prefix
after another, as in a server. Agreement is the share of greedy tokens that the other format would choose as well;
perplexity is that of the sampled text, which the model itself wrote.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from orcastream import demo
from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.attention import TorchBackend
from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import group_layers
from orcastream.engine.model.quiet import quiet
from orcastream.engine.model.runner import ModelRunner, resolve_cache_dtype
from orcastream.schemas.sampling import SamplingParams
from orcastream.text.tokenizer import Tokenizer

FORMATS = ("int8", "fp8")
BLOCK_SIZE = 16
SHAPES = {
    "random, 8 layers, 2 KV heads of 64": (512, 8, 8, 2, 64),
    "random, 12 layers, 4 KV heads of 128": (768, 12, 12, 4, 128),
    "random, 16 layers, 4 KV heads of 64": (512, 16, 8, 4, 64),
}
"""Hidden size, layers, heads, KV heads and head size of the random models."""


@dataclass(frozen=True)
class Text:
    """A prompt and its continuation."""

    prompt: list[int]
    output: tuple[int, ...]


def random_model(hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> PreTrainedModel:
    """Return a Qwen3 with weights of unit variance, so that its attention is far from uniform."""
    config = Qwen3Config(
        vocab_size=4096,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    with quiet():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model


def write(model: PreTrainedModel, prompts: list[list[int]], temperature: float, num_tokens: int) -> list[Text]:
    """Return the model's continuations of `prompts`, with the cache in its own format."""
    engine = OrcaEngine(EngineConfig("bench", block_size=BLOCK_SIZE, max_batch_size=len(prompts)), model)
    params = SamplingParams(temperature=temperature, max_tokens=num_tokens, ignore_eos=True)
    done = engine.generate(prompts, params)
    return [Text(prompt, each.output_ids) for prompt, each in zip(prompts, done, strict=True)]


def logits_of(runner: ModelRunner, text: Text) -> torch.Tensor:
    """Return the logits of every output token, `[len(output), vocab]`, each computed from its cached context."""
    tokens = [*text.prompt, *text.output]
    groups = group_layers(runner.shapes, len(tokens))
    num_blocks = [-(-len(tokens) // BLOCK_SIZE)] * len(groups)
    runner.allocate(groups, num_blocks, BLOCK_SIZE)
    cache = KVCache(
        groups,
        num_blocks,
        block_size=BLOCK_SIZE,
        max_sequences=1,
        max_model_len=len(tokens),
        longest_span=len(tokens),
        prefix_cache=False,
    )
    span = SpanTokens(cache.sequence_of(len(tokens) - 1), tokens[:-1], 0, len(text.output))
    return runner.forward(FlatBatch.build([span], cache, runner.device)).float()


def agreement(runner: ModelRunner, texts: list[Text]) -> float:
    """Return the share of tokens that are the most likely ones."""
    same = [logits_of(runner, text).argmax(-1) == torch.tensor(text.output) for text in texts]
    return float(torch.cat(same).float().mean())


def perplexity(runner: ModelRunner, texts: list[Text]) -> float:
    """Return exp of the mean negative log probability of a token."""
    losses = [
        torch.nn.functional.cross_entropy(logits_of(runner, text), torch.tensor(text.output), reduction="none")
        for text in texts
    ]
    return float(torch.cat(losses).mean().exp())


def measure(name: str, model: PreTrainedModel, prompts: list[list[int]], num_tokens: int) -> None:
    """Measure a model and print a line per format."""
    greedy, sampled = write(model, prompts, 0, num_tokens), write(model, prompts, 1, num_tokens)
    plain = ModelRunner(model, TorchBackend())
    own_size = sum(plain.bytes_per_block(layer, 1) for layer in range(len(plain.shapes)))
    own_agreement, own = agreement(plain, greedy), perplexity(plain, sampled)
    print(f"{name}: {own_size:,} bytes per token, agreement {own_agreement:.2%}, perplexity {own:.3f}")
    for kind in FORMATS:
        runner = ModelRunner(model, TorchBackend(), resolve_cache_dtype(kind))
        size = sum(runner.bytes_per_block(layer, 1) for layer in range(len(runner.shapes)))
        found, other = agreement(runner, greedy), perplexity(runner, sampled)
        change = f"{other / own - 1:+.2%}"
        print(f"  {kind}: {size:,} bytes per token, agreement {found:.2%}, perplexity {other:.3f} ({change})")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all models; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="orcastream.bench.kv_accuracy", description=__doc__.split("\n")[0] if __doc__ else ""
    )
    parser.add_argument("--prompts", type=int, default=16, help="prompts per model (default: 16)")
    parser.add_argument("--tokens", type=int, default=128, help="output tokens per prompt (default: 128)")
    options = parser.parse_args(arguments)
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(demo.MODEL_DIR, dtype=torch.float32).eval()
    tokenizer = Tokenizer.load(str(demo.MODEL_DIR))
    pairs = json.loads((Path(demo.__file__).parent / "questions.json").read_text(encoding="utf-8"))
    questions = [tokenizer.encode(pair["question"]) for pair in pairs[: options.prompts]]
    measure("the demo model", model, questions, options.tokens)
    for name, shape in SHAPES.items():
        generator = torch.Generator().manual_seed(0)
        prompts = torch.randint(4096, (options.prompts, 32), generator=generator).tolist()
        measure(name, random_model(*shape), prompts, options.tokens)
    return 0


if __name__ == "__main__":
    sys.exit(main())
