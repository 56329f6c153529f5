"""The held-out split: disjoint from training, and the same everywhere."""

import itertools

import pytest

from orcastream.demo import HELD_OUT_KINDS, held_out
from orcastream.demo.mixture import long_counts, training_examples
from orcastream.demo.tasks import is_held_out


def test_training_never_draws_held_out_prompts() -> None:
    drawn = [*itertools.islice(training_examples(seed=1), 20_000), *itertools.islice(long_counts(seed=1), 300)]
    trained = {example.key for example in drawn}
    asked = {example.question for example in drawn}
    kept = [example for kind in HELD_OUT_KINDS for example in held_out(kind, 60)]
    assert not trained & {example.key for example in kept}
    assert not asked & {example.question for example in kept}


@pytest.mark.parametrize("kind", HELD_OUT_KINDS)
def test_held_out_prompts_are_different_and_reproducible(kind: str) -> None:
    examples = held_out(kind, 40)
    assert len({example.key for example in examples}) == len(examples) == 40
    assert all(example.is_held_out for example in examples)
    assert examples == held_out(kind, 40)


def test_the_questions_have_no_held_out_part() -> None:
    with pytest.raises(ValueError, match="kind must be one of counting"):
        held_out("questions", 1)


def test_the_split_is_about_one_in_ten() -> None:
    share = sum(is_held_out(f"count 1 {last} 1") for last in range(2, 2002)) / 2000
    assert 0.08 < share < 0.12
