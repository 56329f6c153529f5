"""Prompts for demonstrating the model, each with its exact answer. Needs no torch."""

from orcastream.demo.counting import count
from orcastream.demo.dates import DAYS
from orcastream.demo.questions import questions
from orcastream.demo.spelling import spell

_ANSWERS = {item.question: item.answer for item in questions()}


def answer_to(question: str) -> str:
    """Return the answer to one of the hundred questions. Raises KeyError for any other."""
    return _ANSWERS[question]


SHOWCASE: list[tuple[str, str]] = [
    ("What is 7 + 5?", "12"),
    ("What is selective batching?", answer_to("What is selective batching?")),
    ("Count from 1 to 100", count(1, 100)),
    ("Spell orca", spell("orca")),
    ("What day comes after Tuesday?", "Wednesday"),
    ("What happens when a worker is killed?", answer_to("What happens when a worker is killed?")),
    ("Count from 40 to 52", count(40, 52)),
    ("List the days of the week", ", ".join(DAYS)),
    ("What is a reply log?", answer_to("What is a reply log?")),
    ("Count down from 20 to 1", count(20, 1)),
    ("How many days are in September?", "30"),
    ("What is iteration-level scheduling?", answer_to("What is iteration-level scheduling?")),
]
"""Twelve mixed questions with their answers, from one word to a hundred numbers."""

LONG_COUNT: tuple[str, str] = ("Count from 1 to 300", count(1, 300))
"""A stream of 600 tokens: long enough to kill a worker in the middle of it."""
