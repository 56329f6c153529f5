"""The mixture of tasks: the training examples, and those held out from training."""

import random
from collections.abc import Iterator

from orcastream.demo import counting, dates, questions, spelling, sums
from orcastream.demo.tasks import Example, reword

KINDS = (counting.KIND, spelling.KIND, dates.KIND, sums.KIND, questions.KIND)
GENERATORS = {
    counting.KIND: counting.example,
    spelling.KIND: spelling.example,
    dates.KIND: dates.example,
    sums.KIND: sums.example,
    questions.KIND: questions.example,
}
HELD_OUT_GENERATORS = {name: draw for name, draw in GENERATORS.items() if name != questions.KIND} | {
    counting.LONG_KIND: counting.long_example
}
HELD_OUT_KINDS = tuple(HELD_OUT_GENERATORS)
SHARES = {counting.KIND: 0.26, spelling.KIND: 0.26, dates.KIND: 0.18, sums.KIND: 0.15, questions.KIND: 0.15}


def training_examples(seed: int) -> Iterator[Example]:
    """Yield training examples forever, all kinds mixed, in all wordings."""
    rng = random.Random(seed)
    kinds, weights = list(SHARES), list(SHARES.values())
    while True:
        yield training_example(rng.choices(kinds, weights)[0], rng)


def training_example(kind: str, rng: random.Random) -> Example:
    """Draw one example of a kind that training may see."""
    while True:
        example = GENERATORS[kind](rng)
        if kind == questions.KIND or not example.is_held_out:
            return reword(example, rng)


def long_counts(seed: int) -> Iterator[Example]:
    """Yield upward counts of 60 to 400 numbers forever, without the held-out ones."""
    rng = random.Random(seed)
    while True:
        example = counting.long_example(rng)
        if not example.is_held_out:
            yield reword(example, rng)


def held_out(kind: str, n: int, *, seed: int = 0) -> list[Example]:
    """Return at most `n` different examples of a kind that training never saw, in all wordings.

    The kinds are those of `HELD_OUT_KINDS`; any other raises ValueError. The hundred questions are not among them.
    """
    if kind not in HELD_OUT_GENERATORS:
        raise ValueError(f"kind must be one of {', '.join(HELD_OUT_KINDS)}, not {kind!r}")
    rng = random.Random(f"{kind} {seed}")
    found: dict[str, Example] = {}
    for _ in range(400 * n):
        example = HELD_OUT_GENERATORS[kind](rng)
        if example.is_held_out and example.key not in found:
            found[example.key] = reword(example, rng)
        if len(found) == n:
            break
    return list(found.values())
