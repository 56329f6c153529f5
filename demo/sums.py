"""Small sums and differences."""

import random

from demo.tasks import Example

KIND = "sums"
LARGEST = 50
ADDITIONS = (
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "{a} + {b} =",
    "Add {a} and {b}",
    "How much is {a} + {b}?",
)
SUBTRACTIONS = ("What is {a} - {b}?", "What is {a} minus {b}?", "{a} - {b} =", "How much is {a} - {b}?")


def example(rng: random.Random) -> Example:
    """Draw an addition, or a subtraction that does not go below zero, of numbers up to fifty."""
    largest = 12 if rng.random() < 0.25 else LARGEST
    left, right = rng.randint(0, largest), rng.randint(0, largest)
    if rng.random() < 0.6:
        return _make(rng.choice(ADDITIONS), left, right, f"sum {min(left, right)} {max(left, right)}", left + right)
    left, right = max(left, right), min(left, right)
    return _make(rng.choice(SUBTRACTIONS), left, right, f"difference {left} {right}", left - right)


def _make(form: str, left: int, right: int, key: str, answer: int) -> Example:
    return Example(KIND, key, form.format(a=left, b=right), str(answer))
