"""What a prefix match to the token could save over whole blocks: `python -m bench.prefix_granularity`.

Conversations on the demo model: each prompt is the one before, its answer, and new user tokens. A cache with blocks of
one token reuses all that a radix tree with a match inside the last block could reuse: an upper bound of its gain.
"""

import random
import sys
import time

from transformers import AutoModelForCausalLM, PreTrainedModel

import demo
from engine import EngineConfig, OrcaEngine
from engine.model.quiet import quiet
from schemas.sampling import SamplingParams

CONVERSATIONS, TURNS = 4, 6
LENGTHS = ((8, 16), (32, 32), (64, 128), (256, 128))
"""User tokens and answer tokens of a turn."""


def converse(model: PreTrainedModel, block_size: int, user: int, answer: int) -> tuple[int, int, float]:
    """Prompt tokens, those computed, and seconds."""
    config = EngineConfig("demo", block_size=block_size, kv_cache_memory=256 << 20, self_check=False)
    engine = OrcaEngine(config, model)
    choose = random.Random(0)
    history: list[list[int]] = [[] for _ in range(CONVERSATIONS)]
    asked, begun = 0, time.perf_counter()
    params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
    for _ in range(TURNS):
        for tokens in history:
            tokens += choose.choices(range(3, 200), k=user)
        asked += sum(map(len, history))
        for tokens, done in zip(history, engine.generate(history, params), strict=True):
            tokens += done.output_ids
    return asked, engine.stats().prompt_tokens, time.perf_counter() - begun


def main() -> int:
    """Print a line per length of turn; returns the exit status."""
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(demo.MODEL_DIR).float().eval()
    for user, answer in LENGTHS:
        asked, blocks, seconds = converse(model, 16, user, answer)
        _, exact, _ = converse(model, 1, user, answer)
        saved = blocks - exact
        print(
            f"turns of {user} + {answer}: {asked:,} prompt tokens, {blocks:,} computed with blocks of 16, {exact:,} "
            f"with a match to the token: {saved / asked:.1%} of all fewer, {saved / CONVERSATIONS / TURNS:.1f} per "
            f"prompt; {seconds:.1f} s with blocks of 16"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
