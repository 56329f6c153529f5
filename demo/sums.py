"""Small sums and differences."""

import random

from orcastream.demo.tasks import Example

KIND = "sums"
LARGEST = 20
ADDITIONS = (
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "{a} + {b} =",
    "Add {a} and {b}",
    "How much is {a} + {b}?",
)
SUBTRACTIONS = ("What is {a} - {b}?", "What is {a} minus {b}?", "{a} - {b} =", "How much is {a} - {b}?")


def example(rng: random.Random) -> Example:
    """Draw an addition, or a subtraction that does not go below zero, of numbers up to twenty.

    Each wording with its numbers is a separate key.
    """
    left, right = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    if rng.random() < 0.6:
        return _make(rng.choice(ADDITIONS), left, right, left + right)
    left, right = max(left, right), min(left, right)
    return _make(rng.choice(SUBTRACTIONS), left, right, left - right)


def _make(form: str, left: int, right: int, answer: int) -> Example:
    question = form.format(a=left, b=right)
    return Example(KIND, question, question, str(answer))
