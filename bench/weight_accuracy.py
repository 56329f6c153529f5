"""Measure the loss of accuracy by 8-bit weights: `python -m orcastream.bench.weight_accuracy`.

For the demo model and random models, answers are generated with the original weights, greedily and at temperature 1.
Then the same tokens are computed with linear layers in int8. Agreement is the share of greedy tokens that int8 would
choose as well; perplexity is that of the sampled text, which the model itself wrote.
"""

import argparse
import copy
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from orcastream import demo
from orcastream.bench.kv_accuracy import SHAPES, agreement, perplexity, random_model, write
from orcastream.engine.attention import TorchBackend
from orcastream.engine.model.passes import apply_passes
from orcastream.engine.model.quiet import quiet
from orcastream.engine.model.runner import ModelRunner
from orcastream.text.tokenizer import Tokenizer


def measure(name: str, model: PreTrainedModel, prompts: list[list[int]], num_tokens: int) -> None:
    """Print a line."""
    greedy, sampled = write(model, prompts, 0, num_tokens), write(model, prompts, 1, num_tokens)
    plain = ModelRunner(model, TorchBackend())
    own_agreement, own = agreement(plain, greedy), perplexity(plain, sampled)
    rounded = copy.deepcopy(model)
    with quiet():
        rounded.set_attn_implementation("eager")
    apply_passes(rounded, int8=True)
    runner = ModelRunner(rounded, TorchBackend())
    found, other = agreement(runner, greedy), perplexity(runner, sampled)
    print(
        f"{name}: agreement {found:.2%} (original weights: {own_agreement:.2%}), "
        f"perplexity {other:.3f} (of {own:.3f}: {other / own - 1:+.2%})",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all models; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="orcastream.bench.weight_accuracy", description=__doc__.split("\n")[0] if __doc__ else ""
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
