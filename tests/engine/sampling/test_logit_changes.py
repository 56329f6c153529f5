"""Penalties and biases change logits as defined, whatever else is in the batch."""

import random

import pytest
import torch

from orcastream.engine.sampling.logit_changes import LogitChanges, change_logits
from orcastream.engine.sampling.sampler import SamplingRow, sample
from orcastream.schemas.sampling import SamplingParams

VOCAB = 40


def params(**changes: object) -> SamplingParams:
    return SamplingParams.model_validate(changes)


def plainly_changed(logits: list[float], asked: SamplingParams, prompt: list[int], outputs: list[int]) -> list[float]:
    """Return the changed logits token by token, by the definitions."""
    changed = []
    for token, logit in enumerate(logits):
        if token in prompt or token in outputs:
            logit = logit / asked.repetition_penalty if logit > 0 else logit * asked.repetition_penalty
        logit += dict(asked.logit_bias).get(token, 0.0)
        logit -= asked.frequency_penalty * outputs.count(token)
        logit -= asked.presence_penalty * (token in outputs)
        changed.append(logit)
    return changed


@pytest.mark.parametrize("seed", range(20))
def test_changes_follow_the_definitions(seed: int, device: torch.device) -> None:
    choose = random.Random(seed)
    prompt = [choose.randrange(VOCAB) for _ in range(10)]
    outputs = [choose.randrange(VOCAB) for _ in range(choose.randrange(30))]
    asked = params(
        presence_penalty=choose.choice([0, choose.uniform(-2, 2)]),
        frequency_penalty=choose.choice([0, choose.uniform(-2, 2)]),
        repetition_penalty=choose.choice([1.0, choose.uniform(0.1, 3)]),
        logit_bias=[[token, choose.uniform(-100, 100)] for token in choose.sample(range(VOCAB), choose.randrange(6))],
    )
    logits = torch.randn(VOCAB, device=device)
    changes = LogitChanges.of(asked, prompt)
    row = logits.clone()
    if changes is not None:
        for end in sorted(choose.sample(range(len(outputs) + 1), min(3, len(outputs)))):
            changes.see(outputs[:end])
        changes.see(outputs)
        change_logits(row[None], [changes])
    torch.testing.assert_close(row.cpu(), torch.tensor(plainly_changed(logits.tolist(), asked, prompt, outputs)))


def test_settings_without_effect_are_none() -> None:
    assert LogitChanges.of(params(), [1]) is None
    assert LogitChanges.of(params(temperature=0, logprobs=3), [1]) is None


def test_a_continuation_makes_the_same_changes() -> None:
    asked, outputs = params(frequency_penalty=0.1, presence_penalty=0.7, repetition_penalty=1.3), [3, 5, 3, 3, 7]
    first, second = LogitChanges(asked, [1]), LogitChanges(asked, [1])
    for end in range(len(outputs) + 1):
        first.see(outputs[:end])
    second.see(outputs)
    rows = torch.randn(VOCAB).repeat(2, 1)
    change_logits(rows, [first, second])
    assert torch.equal(rows[0], rows[1])


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_the_sampler_changes_no_other_row(temperature: float, device: torch.device) -> None:
    logits = torch.randn(4, VOCAB, device=device)
    before = logits.clone()
    asked = params(temperature=temperature, logit_bias=[[5, 100]], logprobs=1)
    changes = LogitChanges.of(asked, [])
    plain = SamplingRow(params(temperature=temperature), 1, 0)
    alone = [each.token for each in sample(logits, [plain] * 4)]
    mixed = sample(logits, [plain, SamplingRow(asked, 1, 0, (), changes), plain, plain])
    assert [mixed[index].token for index in (0, 2, 3)] == [alone[index] for index in (0, 2, 3)]
    assert mixed[1].token == 5
    assert mixed[1].logprobs is not None
    assert mixed[1].logprobs[0] == pytest.approx(float(before[1].log_softmax(-1)[5])), "the model's own"
    assert torch.equal(logits, before)


def test_rows_changed_together_equal_rows_changed_alone(device: torch.device) -> None:
    choose = random.Random(3)
    rows: list[LogitChanges | None] = [None]
    for number in range(6):
        asked = params(
            presence_penalty=choose.choice([0, 0.3]),
            repetition_penalty=choose.choice([1.0, 1.3]),
            logit_bias=[[number, 1.7]] if number % 2 else [],
        )
        changes = LogitChanges(asked, [choose.randrange(VOCAB) for _ in range(5)])
        changes.see([choose.randrange(VOCAB) for _ in range(number)])
        rows.append(changes)
    logits = torch.randn(len(rows), VOCAB, device=device)
    together = logits.clone()
    change_logits(together, rows)
    for row, changes in enumerate(rows):
        alone = logits[row : row + 1].clone()
        change_logits(alone, [changes])
        assert torch.equal(together[row : row + 1], alone)
