"""Code shared by all task generators: the example, the held-out split and the rewording."""

import hashlib
import random
from dataclasses import dataclass, replace

HELD_OUT_SHARE = 10
"""One key in this many is held out."""


@dataclass(frozen=True)
class Example:
    """A question with its only correct answer.

    `key` names the fact behind the question. The split into training and held-out examples looks at the key,
    so no wording of a held-out fact is ever trained.
    """

    kind: str
    key: str
    question: str
    answer: str

    depends_on_case: bool = False

    @property
    def is_held_out(self) -> bool:
        """Whether the example is excluded from training."""
        return is_held_out(self.key)


def is_held_out(key: str) -> bool:
    """Return whether a key is held out, by its hash, which is the same on every machine."""
    return hashlib.sha256(key.encode()).digest()[0] % HELD_OUT_SHARE == 0


def reword(example: Example, rng: random.Random) -> Example:
    """Return the same question with other politeness, capitals or punctuation."""
    is_request = not example.question.endswith(("?", "="))
    question = _reword_request(example.question, rng) if is_request else _reword_question(example, rng)
    return replace(example, question=question)


def _reword_request(text: str, rng: random.Random) -> str:
    lowered = text[0].lower() + text[1:]
    forms = [
        text,
        f"{text}.",
        lowered,
        f"{lowered}.",
        f"{text}!",
        f"Please {lowered}",
        f"Please {lowered}.",
        f"please {lowered}",
        f"{text}, please.",
        f"{text} please",
        f"Can you {lowered}?",
        f"Could you {lowered}?",
    ]
    return text if rng.random() < 0.4 else rng.choice(forms)


def _reword_question(example: Example, rng: random.Random) -> str:
    text = example.question
    if text.endswith("="):
        return text
    lowered = text[0].lower() + text[1:]
    forms = [text, text.rstrip("?"), lowered, lowered.rstrip("?")]
    if not example.depends_on_case:
        forms += [text.lower(), text.lower().rstrip("?")]
    return text if rng.random() < 0.5 else rng.choice(forms)
