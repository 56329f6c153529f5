"""Measure what prefix matches inside a block save over whole blocks: `python -m orcastream.bench.prefix_granularity`.

Uses conversations with the demo model: each prompt is the previous one, its answer, and new user tokens.
"""

import random
import sys
import time
from unittest.mock import patch

from transformers import AutoModelForCausalLM, PreTrainedModel

from orcastream import demo
from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.model.quiet import quiet
from orcastream.schemas.sampling import SamplingParams

CONVERSATIONS, TURNS = 4, 6
LENGTHS = ((8, 16), (32, 32), (64, 128), (256, 128))
"""User tokens and answer tokens per turn."""


def converse(model: PreTrainedModel, user: int, answer: int, *, whole_blocks: bool) -> tuple[int, int, float]:
    """Return prompt tokens, computed prompt tokens, and seconds."""
    engine = OrcaEngine(EngineConfig("demo", kv_cache_memory=256 << 20, self_check=False), model)
    matching = engine.cache.open
    if whole_blocks:  # without the tokens, a cache can match only names of whole blocks
        patch.object(engine.cache, "open", lambda chain, num_tokens, tokens: matching(chain, num_tokens)).start()
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
    """Print a line per length of turn; return the exit status."""
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(demo.MODEL_DIR).float().eval()
    for user, answer in LENGTHS:
        asked, whole, whole_s = converse(model, user, answer, whole_blocks=True)
        _, inside, inside_s = converse(model, user, answer, whole_blocks=False)
        saved = whole - inside
        print(
            f"turns of {user} + {answer}: {asked:,} prompt tokens, {whole:,} computed by whole blocks in {whole_s:.2f} "
            f"s, {inside:,} by a match inside the last one in {inside_s:.2f} s: {saved / CONVERSATIONS / TURNS:.1f} "
            "fewer per prompt"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
