"""From examples to token sequences: chat turns, bare prompts, and long counts with a part cut out."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer

from orcastream.demo import dates, mixture, questions
from orcastream.demo.tasks import Example
from orcastream.demo.tokenizer import END, START

RAW_SHARE = 0.35
SYSTEM_SHARE = 0.15
MULTI_TURN_SHARE = 0.2
WINDOW = (5, 16)
"""Minimum and maximum number of a count's tokens in a window."""
END_SHARE = 0.45
"""Share of windows at the count's end, from which the model learns where to stop."""
FIXED_SHARE = 0.06
"""Additional share of the lists of all days and months: long answers to few questions."""
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are Orcastream's demo model.",
    "Answer briefly.",
    "You count, spell and answer questions about Orcastream.",
    "Be precise and friendly.",
    "You are a careful assistant. Give only the answer.",
)
CONTEXT = 2
"""Number of tokens at the start of a window that are context only and not learned."""


@dataclass(frozen=True)
class Sequence:
    """Tokens with their positions; `learned` marks those that the model is trained to predict.

    All three have the same length. Positions rise, but not always by one: a long count may have a part cut out, and
    the rest keeps its positions of the whole count.
    """

    tokens: list[int]
    positions: list[int]
    learned: list[bool]


class SequenceBuilder:
    """A source of sequences from the training mixture, reproducible for a seed."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        self._examples = mixture.training_examples(seed)
        self._long_counts = mixture.long_counts(seed)

    def mixed(self) -> Iterator[Sequence]:
        """Yield short sequences of all kinds forever."""
        while True:
            if self._rng.random() < FIXED_SHARE:
                yield self._build([self._rng.choice(dates.examples()[: len(dates.FIXED)])])
            turns = 1 if self._rng.random() > MULTI_TURN_SHARE else self._rng.randint(2, 4)
            yield self._build([next(self._examples) for _ in range(turns)])

    def long(self) -> Sequence:
        """Return one whole long count."""
        return self._build([next(self._long_counts)])

    def cut(self) -> Sequence:
        """Return a long count reduced to its prompt and one window, often the one at its end.

        The first tokens of the window are not learned, because the tokens before them are missing.
        """
        whole = self._build([next(self._long_counts)])
        start, length = whole.learned.index(True), len(whole.tokens)
        size = self._rng.randint(*WINDOW)
        early = length - size if self._rng.random() < END_SHARE else self._rng.randint(start, length - size)
        kept = [*range(start), *range(early, early + size)]
        unsure = range(early, early + CONTEXT) if early > start else ()
        return Sequence(
            [whole.tokens[index] for index in kept],
            kept,
            [whole.learned[index] and index not in unsure for index in kept],
        )

    def _build(self, examples: list[Example]) -> Sequence:
        pieces = self._raw(examples[0]) if len(examples) == 1 and self._is_raw() else self._chat(examples)
        tokens: list[int] = []
        learned: list[bool] = []
        for text, is_learned in pieces:
            ids = self._tokenizer.encode(text).ids
            tokens += ids
            learned += [is_learned] * len(ids)
        return Sequence(tokens, list(range(len(tokens))), learned)

    def _is_raw(self) -> bool:
        return self._rng.random() < RAW_SHARE

    def _raw(self, example: Example) -> list[tuple[str, bool]]:
        return [(example.question, False), (f"\n{example.answer}{END}", True)]

    def _chat(self, examples: list[Example]) -> list[tuple[str, bool]]:
        pieces: list[tuple[str, bool]] = []
        if self._rng.random() < SYSTEM_SHARE:
            pieces.append((f"{START}system\n{self._system()}{END}\n", False))
        for example in examples:
            pieces.append((f"{START}user\n{example.question}{END}\n{START}assistant\n", False))
            pieces.append((f"{example.answer}{END}", True))
            pieces.append(("\n", False))
        return pieces[:-1]

    def _system(self) -> str:
        if self._rng.random() < 0.5:
            return self._rng.choice(SYSTEM_PROMPTS)
        texts = [self._rng.choice(questions.questions()).answer for _ in range(self._rng.randint(1, 2))]
        return " ".join([self._rng.choice(SYSTEM_PROMPTS), *texts])
