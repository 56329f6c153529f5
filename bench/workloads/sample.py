"""One request of a benchmark, as plain data, and how it continues an earlier one."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class SampleRequest:
    """What is asked, when, and by whom.

    `prompt` is token ids, or text for a chat. With token ids the output has exactly `max_tokens` tokens: those that end
    a text are ignored. `answer` is the right text where one is known.
    """

    prompt: str | tuple[int, ...]
    answer: str | None = None
    max_tokens: int | None = None
    arrival_s: float = 0.0
    """Seconds after the start of the run; with `follows`, seconds after the end of that request."""
    tenant: str = "default"
    priority_class: str = "normal"
    group: str = ""
    """Requests of one group get figures of their own."""
    follows: int | None = None
    """Index in the workload of an earlier request that must have ended before this one arrives."""
    continues: bool = False
    """Whether the whole prompt and the answer of the request that it follows precede `prompt`."""


def continued(request: SampleRequest, prompt: Sequence[int], answer: Sequence[int]) -> SampleRequest:
    """`request` with the whole prompt and the answer of the request that it continues before its own tokens."""
    return replace(request, prompt=(*prompt, *answer, *token_ids(request)))


def token_ids(request: SampleRequest) -> tuple[int, ...]:
    """The token ids of a request that has some; ValueError for a text."""
    if isinstance(request.prompt, str):
        raise ValueError(f"prompt: got text ({request.prompt[:40]!r}), allowed: token ids")
    return request.prompt


def with_other_ids(requests: Iterable[SampleRequest], vocab_size: int, rng: random.Random) -> Iterator[SampleRequest]:
    """The requests with all token ids exchanged for others by one permutation, so that no prefix cache has seen them.

    Lengths, arrivals and what prompts have in common stay; texts are as they were.
    """
    others = rng.sample(range(vocab_size), vocab_size)
    for request in requests:
        is_text = isinstance(request.prompt, str)
        yield request if is_text else replace(request, prompt=tuple(others[token] for token in token_ids(request)))
