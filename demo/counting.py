"""Counting: up, down and in steps, from two numbers to four hundred."""

import random
from dataclasses import replace

from orcastream.demo.tasks import Example

KIND = "counting"
LONG_KIND = "long counting"
LARGEST = 500
LONGEST = 400
"""Maximum count of numbers in one answer."""


def count(first: int, last: int, step: int = 1) -> str:
    """Return the numbers from `first` towards `last` in steps of `step`, up or down, as the model writes them."""
    if step < 1:
        raise ValueError(f"step must be at least 1, not {step}")
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return ", ".join(map(str, numbers))


def example(rng: random.Random) -> Example:
    """Draw a count: mostly short and upward, occasionally hundreds of numbers long."""
    draw = rng.random()
    if draw < 0.72:
        return _upwards(rng)
    return _downwards(rng) if draw < 0.86 else _stepping(rng)


def long_example(rng: random.Random) -> Example:
    """Draw an upward count of 60 to 400 numbers."""
    length = rng.randint(60, LONGEST)
    return replace(_make(*_range(rng, length), 1, "Count from {first} to {last}"), kind=LONG_KIND)


def _upwards(rng: random.Random) -> Example:
    first, last = _range(rng, rng.randint(2, 14) if rng.random() < 0.7 else rng.randint(14, 40))
    if first == 1 and rng.random() < 0.3:
        return _make(first, last, 1, "Count to {last}")
    return _make(first, last, 1, "Count from {first} to {last}")


def _downwards(rng: random.Random) -> Example:
    last, first = _range(rng, rng.randint(2, 12) if rng.random() < 0.8 else rng.randint(12, 30))
    return _make(first, last, 1, "Count down from {first} to {last}")


def _stepping(rng: random.Random) -> Example:
    step = rng.choice((2, 3, 5, 10))
    first = rng.randint(0, 100) if rng.random() < 0.5 else step * rng.randint(0, 10)
    last = first + step * rng.randint(1, 14)
    form = rng.choice(("Count from {first} to {last} by {step}", "Count from {first} to {last} in steps of {step}"))
    return _make(first, last, step, form)


def _range(rng: random.Random, length: int) -> tuple[int, int]:
    """Draw a range of about `length` numbers; many begin at one and end at a round number, as people prefer."""
    draw = rng.random()
    if draw < 0.25:
        first = rng.randint(0, 1)
    elif draw < 0.5:
        first = rng.randint(0, min(100, LARGEST - length))
    else:
        first = rng.randint(0, LARGEST - length)
    last = first + length - 1
    if length > 10 and rng.random() < 0.35:
        last = min(LARGEST, round(last + 5, -2 if last >= 50 and rng.random() < 0.4 else -1))
        first = max(min(first, last - 2), last - LONGEST + 1)
        if first > 1 and rng.random() < 0.4:
            first -= first % 10
    return first, last


def _make(first: int, last: int, step: int, form: str) -> Example:
    question = form.format(first=first, last=last, step=step)
    return Example(KIND, f"count {first} {last} {step}", question, count(first, last, step))
