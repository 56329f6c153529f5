"""Penalties, biases and log probabilities of the engine equal those of a plain loop over the model."""

import random
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine.model.quiet import quiet
from tests.engine.conftest import VOCAB_SIZE
from tests.engine.running import MakeEngine, MakeModel, request, run, tokens
from tests.engine.sampling.test_logit_changes import plainly_changed

PROMPT = (7, 3, 7, 11)
COUNT = 14
SETTINGS: list[dict[str, Any]] = [
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.9},
    {"repetition_penalty": 1.8},
    {"logit_bias": [[5, 3.0], [9, -100]]},
    {"presence_penalty": -0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.2, "logit_bias": [[5, 1.0]]},
]


@torch.inference_mode()
def reference(model: PreTrainedModel, params: Any) -> tuple[list[int], list[float]]:
    """Decode greedily with one full forward pass per token; return tokens and their log probabilities."""
    outputs: list[int] = []
    logprobs = []
    with quiet():
        model.set_attn_implementation("eager")
    for _ in range(COUNT):
        logits = model(torch.tensor([[*PROMPT, *outputs]], device=model.device)).logits[0, -1].float()
        changed = plainly_changed(logits.tolist(), params, [*PROMPT], outputs)
        outputs.append(max(range(VOCAB_SIZE), key=changed.__getitem__))
        logprobs.append(float(logits.log_softmax(-1)[outputs[-1]]))
    return outputs, logprobs


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1, "logprobs": 1}], ids=str)
def test_the_minimum_repetition_penalty_repeats_and_harms_no_other(
    make_engine: MakeEngine, settings: dict[str, Any]
) -> None:
    prompt, engine = tuple(range(40)), make_engine()
    events = run(engine, request("a", prompt, repetition_penalty=1e-300, **settings), request("b", prompt[:9]))
    assert [event.error for event in events["a"]] == [None] * 8
    assert {event.token for event in events["a"]} <= set(prompt)
    again = request("c", prompt)
    run(engine, again)
    assert again.cached_tokens == 39


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_all_settings_in_one_batch(make_model: MakeModel, make_engine: MakeEngine, overlap: str) -> None:
    model = make_model("llama")
    requests = [
        request(f"r{number}", PROMPT, max_tokens=COUNT, logprobs=2, **settings)
        for number, settings in enumerate([*SETTINGS, {}])
    ]
    expected = {each.id: reference(model, each.sampling) for each in requests}
    assert len({tuple(found) for found, _ in expected.values()}) > 3, "the settings matter"
    events = run(make_engine(model, overlap=overlap), *requests)
    for name, (outputs, logprobs) in expected.items():
        assert tokens(events[name]) == outputs
        told = [event.logprobs[0] for event in events[name] if event.logprobs]
        assert told == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_continuation_from_the_middle_generates_the_same(
    make_model: MakeModel, make_engine: MakeEngine, settings: dict[str, Any]
) -> None:
    model = make_model("llama")
    choose = random.Random(3)
    for sampling in ({"temperature": 0}, {"temperature": 1.0, "seed": 9, "top_p": 0.9}):
        whole = request("whole", PROMPT, max_tokens=COUNT, **{**settings, **sampling})
        outputs = tokens(run(make_engine(model), whole)["whole"])
        at = choose.randrange(1, COUNT)
        known = tuple(token for token in outputs[:at] if token is not None)
        rest = request("rest", PROMPT, known, max_tokens=COUNT, **{**settings, **sampling})
        rest.seed = whole.seed
        assert tokens(run(make_engine(model), rest)["rest"]) == outputs[at:]


def test_preemption_changes_nothing(make_model: MakeModel, make_engine: MakeEngine) -> None:
    model = make_model("llama")

    def crowd() -> list[Any]:
        return [
            request(f"r{number}", PROMPT, max_tokens=COUNT, **SETTINGS[number % len(SETTINGS)]) for number in range(10)
        ]

    roomy = run(make_engine(model), *crowd())
    narrow = make_engine(model, num_blocks=12)
    tight = run(narrow, *crowd())
    assert {name: tokens(events) for name, events in tight.items()} == {
        name: tokens(events) for name, events in roomy.items()
    }
    assert narrow.stats().preemptions > 0


class Counted(list[int]):
    """A list that counts the items copied by slices of it."""

    copied = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.copied += len(found) if isinstance(index, slice) else 0
        return found


def test_a_token_costs_the_same_however_long_the_output_is(make_engine: MakeEngine) -> None:
    engine, one = make_engine(), request("a", (1, 2, 3), max_tokens=100, presence_penalty=1.0)
    one.tokens, one.output_ids = Counted(one.tokens), Counted()
    run(engine, one)
    assert one.num_outputs == 100
    assert one.tokens.copied + one.output_ids.copied < 500
