"""Days of the week and months of the year."""

import random
from collections.abc import Iterator
from functools import cache

from orcastream.demo.tasks import Example

KIND = "calendar"
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
NEXT = ("What {unit} comes after {name}?", "Which {unit} follows {name}?", "What comes after {name}?",
        "Which {unit} comes next after {name}?", "Name the {unit} after {name}", "What is the {unit} after {name}?",
        "Which {unit} comes after {name}?")  # fmt: skip
PREVIOUS = ("What {unit} comes before {name}?", "Which {unit} is before {name}?", "What comes before {name}?",
            "Which {unit} comes right before {name}?", "Name the {unit} before {name}",
            "What is the {unit} before {name}?", "Which {unit} comes before {name}?")  # fmt: skip
DISTANCE = ("What {unit} is {n} {unit}s {way} {name}?", "Which {unit} comes {n} {unit}s {way} {name}?",
            "Name the {unit} {n} {unit}s {way} {name}")  # fmt: skip
LISTS = ("List the {unit}s from {name} to {other}", "Name the {unit}s from {name} to {other}",
         "What are the {unit}s from {name} to {other}?")  # fmt: skip
LENGTH = ("How many days are in {name}?", "How many days does {name} have?", "How many days are there in {name}?",
          "How long is {name} in days?")  # fmt: skip
NUMBER = ("What number is {name}?", "Which number is the month {name}?", "What is the number of the month {name}?")
NUMBERED = ("Which month is number {n}?", "What is month {n}?", "Name month number {n}")
FIXED = (
    ("List the days of the week", ", ".join(DAYS)),
    ("What are the days of the week?", ", ".join(DAYS)),
    ("List the months of the year", ", ".join(MONTHS)),
    ("What are the months of the year?", ", ".join(MONTHS)),
    ("How many days are in a week?", "7"),
    ("How many days are there in a week?", "7"),
    ("How many days does a week have?", "7"),
    ("How many months are in a year?", "12"),
    ("How many months are there in a year?", "12"),
    ("How many months does a year have?", "12"),
)


@cache
def examples() -> tuple[Example, ...]:
    """Return every question about the calendar. Each wording with its names is a separate key."""
    pairs = [*FIXED, *_neighbours("day", DAYS), *_neighbours("month", MONTHS), *_month_facts()]
    return tuple(Example(KIND, question, question, answer) for question, answer in pairs)


def example(rng: random.Random) -> Example:
    """Draw a question about the calendar."""
    return rng.choice(examples())


def _neighbours(unit: str, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    size = len(names)
    for index, name in enumerate(names):
        for form in NEXT:
            yield form.format(unit=unit, name=name), names[(index + 1) % size]
        for form in PREVIOUS:
            yield form.format(unit=unit, name=name), names[(index - 1) % size]
        for n in (2, 3):
            for form in DISTANCE:
                yield form.format(unit=unit, name=name, n=n, way="after"), names[(index + n) % size]
                yield form.format(unit=unit, name=name, n=n, way="before"), names[(index - n) % size]
        for span in range(2, size):
            listed = [names[(index + offset) % size] for offset in range(span)]
            for form in LISTS:
                yield form.format(unit=unit, name=name, other=listed[-1]), ", ".join(listed)


def _month_facts() -> Iterator[tuple[str, str]]:
    for index, (name, days) in enumerate(zip(MONTHS, LENGTHS, strict=True)):
        for form in LENGTH:
            yield form.format(name=name), "28, or 29 in a leap year" if name == "February" else str(days)
        for form in NUMBER:
            yield form.format(name=name), str(index + 1)
        for form in NUMBERED:
            yield form.format(n=index + 1), name
