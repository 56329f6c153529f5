"""The hundred questions about Orcastream, with the answers that the model knows by heart."""

import json
import random
from functools import cache
from pathlib import Path

from orcastream.demo.tasks import Example

KIND = "questions"
PATH = Path(__file__).resolve().parent / "questions.json"


@cache
def questions() -> tuple[Example, ...]:
    """Return the hundred questions in the order of the file. None of them is held out: the model recites them."""
    items = json.loads(PATH.read_text(encoding="utf-8"))
    return tuple(Example(KIND, f"question {item['question']}", item["question"], item["answer"]) for item in items)


def example(rng: random.Random) -> Example:
    """Draw a question."""
    return rng.choice(questions())
