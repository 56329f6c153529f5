"""All features at once, against transformers' generate: no engine feature changes a token."""

import random
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine import Beam, OrcaEngine, Request
from orcastream.engine.model.quiet import quiet
from orcastream.engine.schedule.policies import POLICIES
from orcastream.schemas.keys import CLASSES
from orcastream.schemas.sampling import SamplingParams
from tests.engine.running import MakeEngine, MakeModel

_TOKENS = 10


def answers(model: PreTrainedModel, prompt: tuple[int, ...], width: int) -> list[list[int]]:
    """Return the tokens of generate: greedy for a width of 1, otherwise the two best beams."""
    ids = torch.tensor([prompt])
    options: dict[str, Any] = {} if width == 1 else {"num_beams": width, "num_return_sequences": 2}
    with quiet(), torch.inference_mode():
        model.set_attn_implementation("eager")
        rows = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=_TOKENS, do_sample=False, pad_token_id=0, **options
        )
    return [row[len(prompt) :].tolist() for row in rows]


def prompts(choose: random.Random) -> list[tuple[int, ...]]:
    """Return prompts, some of which share prefixes of whole blocks and parts of blocks."""
    stem = [choose.randrange(96) for _ in range(40)]
    lengths = [0, 6, 17, 24, 33, 40]
    return [
        (*stem[: choose.choice(lengths)], *(choose.randrange(96) for _ in range(choose.randint(1, 12))))
        for _ in range(7)
    ]


def requests_for(name: str, prompt: tuple[int, ...], width: int, choose: random.Random) -> list[Request]:
    """Return a beam search, or one to three choices of one prompt."""
    sampling = SamplingParams(temperature=0, max_tokens=_TOKENS)
    fields: dict[str, Any] = {
        "priority_class": choose.choice(CLASSES),
        "tenant": "ab"[len(prompt) % 2],
        "ttft_slo_ms": choose.choice([None, 1.0, 1000.0]),
        "tbt_slo_ms": choose.choice([None, 1.0]),
    }
    if width > 1:
        return [Request(name, prompt, sampling, beam=Beam(width, 2), **fields)]
    count = choose.choice([1, 1, 3])
    return [Request(f"{name}-{index}", prompt, sampling, group=name, **fields) for index in range(count)]


def play(engine: OrcaEngine, requests: list[Request], choose: random.Random) -> dict[tuple[str, int], list[int | None]]:
    """Submit at any time, switch policies at any time; return the tokens of each choice."""
    found: dict[tuple[str, int], list[int | None]] = {}
    waiting = list(requests)
    while waiting or engine.has_work:
        while waiting and (choose.random() < 0.5 or not engine.has_work):
            engine.submit(waiting.pop(0))
        if choose.random() < 0.2:
            engine.switch_policy(choose.choice(sorted(POLICIES)))
        for event in engine.step():
            assert event.error is None
            found.setdefault((event.request_id, event.choice), []).append(event.token)
        engine.check_integrity()
    assert engine.stats().blocks_used == 0
    return found


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_the_same_tokens_as_transformers(
    family: str, overlap: str, make_model: MakeModel, make_engine: MakeEngine
) -> None:
    model = make_model(family)
    totals = {"preemptions": 0, "swaps": 0, "cached_tokens": 0}
    for seed in range(6):
        choose = random.Random(seed)
        asked = [(prompt, choose.choice([1, 1, 3])) for prompt in prompts(choose)]
        expected = {str(index): answers(model, *each) for index, each in enumerate(asked)}
        engine = make_engine(
            model,
            num_blocks=48,
            max_batch_size=6,
            max_num_batched_tokens=24,
            overlap=overlap,
            preemption=choose.choice(["recompute", "swap", "auto"]),
            host_cache_memory=1 << 19,
            token_budget=choose.choice(["fixed", "adaptive"]),
            admission=choose.choice(["paged", "paged", "reserve"]),
        )
        everyone = [
            each for i, (prompt, width) in enumerate(asked) for each in requests_for(str(i), prompt, width, choose)
        ]
        choose.shuffle(everyone)
        for (name, choice), tokens in play(engine, everyone, choose).items():
            assert tokens == expected[name.split("-")[0]][choice], (seed, name)
        stats = engine.stats()
        for total in totals:
            totals[total] += getattr(stats, total)
    assert all(totals.values()), totals
