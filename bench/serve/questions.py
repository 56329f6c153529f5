"""Questions in text: those of the demo model, whose answers are known, or those of a file."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orcastream.bench.workloads import SampleRequest
from orcastream.demo import HELD_OUT_KINDS, held_out
from orcastream.demo.prompts import LONG_COUNT, SHOWCASE
from orcastream.demo.questions import questions

DEMO_MODEL = "orca-demo"
_EACH_HELD_OUT = 40


@dataclass(frozen=True)
class Group:
    """Questions that share one fraction of the load."""

    share: float
    questions: Sequence[SampleRequest]


class QuestionMix:
    """A mixture of groups of questions, drawn with one seed, so that the n-th question is always the same."""

    def __init__(self, groups: Sequence[Group], seed: int = 0) -> None:
        self._groups = [group for group in groups if group.questions]
        if not self._groups:
            raise ValueError("questions: got none, allowed: at least one")
        self._rng = random.Random(f"questions {seed}")

    def draw(self) -> SampleRequest:
        """Return the next question."""
        group = self._rng.choices(self._groups, [group.share for group in self._groups])[0]
        return self._rng.choice(group.questions)


def known_by_heart(seed: int = 0) -> QuestionMix:
    """Return questions that the demo model answers exactly: one word, a paragraph, a count of 600 tokens."""
    recited = [SampleRequest(item.question, item.answer) for item in questions()]
    return QuestionMix([Group(0.5, _showcase()), Group(0.42, recited), Group(0.08, [SampleRequest(*LONG_COUNT)])], seed)


def never_seen(seed: int = 0) -> QuestionMix:
    """Return questions held out of the demo model's training: nearly all answers are correct."""
    kinds = [
        [SampleRequest(item.question, item.answer) for item in held_out(kind, _EACH_HELD_OUT, seed=seed)]
        for kind in HELD_OUT_KINDS
    ]
    return QuestionMix([Group(1.0, questions) for questions in kinds], seed)


def same_length(seed: int = 0) -> QuestionMix:
    """Return a single repeated question with an answer of 600 tokens: all streams stay equally busy."""
    return QuestionMix([Group(1.0, [SampleRequest(*LONG_COUNT)])], seed)


MIXES = {"demo": known_by_heart, "held-out": never_seen, "long": same_length}
"""The demo model's mixtures by name."""


def from_file(path: Path, seed: int = 0) -> QuestionMix:
    """Read lines of JSON: `{"prompt": ..., "answer": ..., "max_tokens": ...}`, the last two optional, or ValueError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ValueError(f"{path}: allowed: a file of questions that can be read ({why})") from None
    asked = [_question(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not asked:
        raise ValueError(f"{path}: got no questions, allowed: at least one")
    return QuestionMix([Group(1.0, asked)], seed)


def _question(line: str, where: str) -> SampleRequest:
    kinds = {"prompt": str, "answer": str, "max_tokens": int}
    try:
        item = json.loads(line)
        if not (isinstance(item, dict) and "prompt" in item):
            raise ValueError("no prompt")
        for name, value in item.items():
            if name not in kinds or not isinstance(value, kinds[name]):
                raise ValueError(f"{name} is {value!r}")
    except ValueError as error:
        raise ValueError(
            f"{where}: {error}; allowed: an object with prompt (text), answer (text), max_tokens (integer)"
        ) from None
    return SampleRequest(item["prompt"], item.get("answer"), item.get("max_tokens"))


def _showcase() -> list[SampleRequest]:
    return [SampleRequest(question, answer) for question, answer in SHOWCASE]
