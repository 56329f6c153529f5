"""Adapters, constraints, 8-bit caches and settings of draws at once, with requests that leave or begin again: each
request gets the tokens that it gets alone."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from orcastream.engine import Adapter, OrcaEngine, Request
from orcastream.schemas.sampling import SamplingParams
from tests.engine.running import MakeEngine, MakeModel, tokens
from tests.engine.running import run as run_alone
from tests.engine.test_constraints import EOS, Climbing
from tests.lora import ATTENTION, MLP, save_adapter

_TOTALS = ("preemptions", "swaps", "cached_tokens")


class Asked(NamedTuple):
    """What a request asks for; `adapter` is an index."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    adapter: int | None
    climbs: int | None

    def request(self, name: str, adapters: Sequence[Adapter], outputs: Sequence[int] = (), **fields: Any) -> Request:
        adapter = None if self.adapter is None else adapters[self.adapter]
        matcher = None if self.climbs is None else Climbing(self.climbs)
        known = tuple(outputs)
        return Request(
            name, self.prompt, self.sampling, None, known, self.seed, adapter=adapter, matcher=matcher, **fields
        )


def draw(choose: random.Random) -> dict[str, Any]:
    """Return settings of which each is used now and then."""
    settings: dict[str, Any] = {
        "top_k": choose.choice([1, 5, 500]),
        "top_p": choose.choice([0.3, 0.9]),
        "presence_penalty": 1.5,
        "repetition_penalty": 1.3,
        "logit_bias": tuple((token, choose.choice([-100.0, 3.0])) for token in choose.sample(range(96), 3)),
        "stop_token_ids": tuple(choose.sample(range(96), 2)),
        "logprobs": 2,
    }
    used = {name: value for name, value in settings.items() if choose.random() < 0.25}
    return {"temperature": choose.choice([0.0, 0.7, 1.5]), "max_tokens": choose.choice([2, 12, 16]), **used}


def asks(choose: random.Random) -> list[tuple[str, Asked, dict[str, Any]]]:
    """Return names, requests and fields: some prompts share a prefix, some requests a prompt."""
    stem = [choose.randrange(96) for _ in range(24)]
    found = []
    for number in range(6):
        prompt = (*stem[: choose.choice([0, 6, 13, 24])], *(choose.randrange(96) for _ in range(choose.randint(1, 6))))
        sampling = SamplingParams(**draw(choose))
        adapter, climbs = choose.choice([None, 0, 1]), choose.choice([None, None, 3, 12])
        fields = {"group": f"group-{number}", "tenant": choose.choice("ab")}
        found += [
            (f"{number}.{index}", Asked(prompt, sampling, 10 * number + index, adapter, climbs), fields)
            for index in range(choose.choice([1, 1, 3]))
        ]
    return found


def disturb(
    engine: OrcaEngine, asked: list[tuple[str, Asked, dict[str, Any]]], adapters: list[Adapter], choose: random.Random
) -> tuple[dict[str, list[int | None]], set[str]]:
    """Submit at any time; return the tokens of each request, and the names of those that were canceled."""
    waiting, live, canceled = list(asked), {}, set()
    found: dict[str, list[int | None]] = {name: [] for name, _, _ in asked}
    while waiting or engine.has_work:
        while waiting and (choose.random() < 0.5 or not engine.has_work):
            name, each, fields = waiting.pop(0)
            engine.submit(each.request(name, adapters, **fields))
            live[name] = each, fields
        if live and choose.random() < 0.15:
            name = choose.choice(sorted(live))
            assert engine.cancel(name)
            each, fields = live.pop(name)
            if choose.random() < 0.7:  # as another worker that takes it over
                engine.submit(each.request(name, adapters, [id for id in found[name] if id is not None], **fields))
                live[name] = each, fields
            else:
                canceled.add(name)
        for event in engine.step():
            assert event.error is None
            found[event.request_id].append(event.token)
            if event.finish_reason is not None:
                del live[event.request_id]
        engine.check_integrity()
    assert not live
    assert engine.stats().blocks_used == 0
    return found, canceled


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
def test_the_same_tokens_as_alone(
    family: str, kv_cache_dtype: str, make_model: MakeModel, make_engine: MakeEngine, tmp_path: Path
) -> None:
    model = make_model(family, eos_token_id=EOS)
    folders = [
        save_adapter(model, tmp_path / f"{index}", seed=index, target_modules=targets)
        for index, targets in enumerate((ATTENTION + MLP, ["q_proj", "down_proj"]))
    ]
    settings: dict[str, Any] = {"max_adapters": 2, "kv_cache_dtype": kv_cache_dtype, "max_model_len": 64}

    def engine_and_adapters(**more: Any) -> tuple[OrcaEngine, list[Adapter]]:
        engine = make_engine(model, **settings, **more)
        assert engine.adapters is not None
        return engine, [engine.adapters.read(f"{index}", folder) for index, folder in enumerate(folders)]

    undisturbed, own = engine_and_adapters(num_blocks=200, prefix_cache=False)
    totals = dict.fromkeys(_TOTALS, 0)
    for seed in range(8):
        choose = random.Random(seed)
        engine, adapters = engine_and_adapters(
            num_blocks=13 if kv_cache_dtype == "auto" else 5,  # of the model's format
            max_batch_size=8,
            max_num_batched_tokens=choose.choice([8, 16]),
            overlap=choose.choice(["on", "off"]),
            preemption=choose.choice(["swap", "auto"]),
            host_cache_memory=choose.choice([1 << 15, 1 << 19]),
        )
        asked = asks(choose)
        found, canceled = disturb(engine, asked, adapters, choose)
        for name, each, _ in asked:
            expected = tokens(run_alone(undisturbed, each.request(name, own))[name])
            assert found[name] == (expected[: len(found[name])] if name in canceled else expected), (seed, name)
        for total in totals:
            totals[total] += getattr(engine.stats(), total)
    assert all(totals.values()), totals
