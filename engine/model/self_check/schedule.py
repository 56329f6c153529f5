"""Schedules of the self-check: how many tokens of which request each iteration computes."""

Schedule = tuple[tuple[int, tuple[int, ...]], ...]
"""For each request the iteration in which it joins, and its tokens in each iteration."""

SHORT: Schedule = (
    (0, (6, 5, 7, 1, 1)),
    (1, (5, 1, 1, 1, 1)),
    (2, (22, 1, 1, 1)),
    (2, (3, 9, 1, 1)),
)
"""The first iteration has a single chunk and asks for no logits, like a chunk that does not finish its prompt. One
iteration has more than 32 rows, which some operators split, and two thirds of the compared rows are single tokens, so
that the median row is one. Kept short, because each token makes startup longer.
"""

LONG: Schedule = (
    (0, (13, 9, 12, 1, 1, 1, 1)),
    (1, (7, 1, 1, 1, 1, 1)),
    (2, (30, 1, 1, 1, 1)),
    (2, (3, 14, 1, 5, 2)),
    (1, (60, 75, 1, 1, 20)),
)
"""A longer one, which only the small copy can afford. One request exceeds 128 tokens, to catch architectures that
change their computation there without a threshold of a known name."""
