"""The generators give correct answers."""

import itertools
import random
import re

import pytest

from orcastream.demo import counting, dates, questions, spelling, sums
from orcastream.demo.prompts import LONG_COUNT, SHOWCASE, answer_to
from orcastream.demo.tasks import Example, reword


def test_counts() -> None:
    assert counting.count(3, 12) == "3, 4, 5, 6, 7, 8, 9, 10, 11, 12"
    assert counting.count(5, 1) == "5, 4, 3, 2, 1"
    assert counting.count(10, 30, 10) == "10, 20, 30"
    with pytest.raises(ValueError, match="step"):
        counting.count(1, 9, 0)


def test_counts_match_the_question() -> None:
    rng = random.Random(0)
    for _ in range(500):
        example = counting.example(rng)
        numbers = [int(number) for number in example.answer.split(", ")]
        named = [int(number) for number in re.findall(r"\d+", example.question)]
        assert numbers[-1] == (named[0] if len(named) == 1 else named[1])
        assert numbers[0] == (1 if len(named) == 1 else named[0])
        assert len({after - before for before, after in itertools.pairwise(numbers)}) == 1


def test_spelling() -> None:
    assert spelling.spell("orca") == "o-r-c-a"
    rng = random.Random(0)
    for _ in range(200):
        example = spelling.example(rng)
        assert example.answer.replace("-", "") in example.question


def test_sums() -> None:
    rng = random.Random(0)
    for _ in range(300):
        example = sums.example(rng)
        left, right = (int(number) for number in re.findall(r"\d+", example.question))
        is_addition = re.search(r"\+|plus|Add", example.question)
        assert int(example.answer) == (left + right if is_addition else left - right)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What day comes after Tuesday?", "Wednesday"),
        ("What month comes before January?", "December"),
        ("What day is 3 days after Saturday?", "Tuesday"),
        ("How many days does a week have?", "7"),
        ("What day is 2 days before Monday?", "Saturday"),
        ("List the months from November to February", "November, December, January, February"),
        ("How many days are in April?", "30"),
        ("What is month 7?", "July"),
    ],
)
def test_calendar(question: str, answer: str) -> None:
    answers = {example.question: example.answer for example in dates.examples()}
    assert answers[question] == answer


def test_calendar_questions_have_one_answer_each() -> None:
    asked = [example.question for example in dates.examples()]
    assert len(asked) == len(set(asked))


def test_the_number_of_questions_is_a_hundred() -> None:
    asked = {example.question for example in questions.questions()}
    assert len(asked) == len(questions.questions()) == 100
    assert all(example.answer.isascii() and example.answer[-1] in ".!" for example in questions.questions())


def test_rewording_keeps_the_answer() -> None:
    rng = random.Random(0)
    example = Example("counting", "count 3 12 1", "Count from 3 to 12", "3, 4")
    reworded = {reword(example, rng).question for _ in range(400)}
    wanted = {"Count from 3 to 12", "Count from 3 to 12.", "count from 3 to 12", "Please count from 3 to 12"}
    assert wanted <= reworded
    assert reword(example, rng).answer == example.answer


def test_showcase() -> None:
    assert len(dict(SHOWCASE)) == 12
    assert dict(SHOWCASE)["Spell orca"] == "o-r-c-a"
    assert LONG_COUNT[1].endswith("298, 299, 300")
    assert answer_to("What is a span?").startswith("A span is")
