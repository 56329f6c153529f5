"""One request of a benchmark as plain data, and its continuation of an earlier one."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class SampleRequest:
    """One request: its content, arrival and tenant.

    `prompt` is token ids, or text for a chat. With token ids the output has exactly `max_tokens` tokens: end tokens are
    ignored. `answer` is the correct text if known.
    """

    prompt: str | tuple[int, ...]
    answer: str | None = None
    max_tokens: int | None = None
    arrival_s: float = 0.0
    """Seconds after the start of the run; with `follows`, seconds after the end of that request."""
    tenant: str = "default"
    priority_class: str = "normal"
    group: str = ""
    """Each group of requests gets separate figures."""
    follows: int | None = None
    """Index in the workload of an earlier request that must have ended before this one arrives."""
    continues: bool = False
    """Whether `prompt` is preceded by the whole prompt and the answer of the request that it follows."""


def continued(request: SampleRequest, prompt: Sequence[int], answer: Sequence[int]) -> SampleRequest:
    """Return `request` with its predecessor's whole prompt and answer before its own tokens."""
    return replace(request, prompt=(*prompt, *answer, *token_ids(request)))


def token_ids(request: SampleRequest) -> tuple[int, ...]:
    """Return a request's token ids. Raises ValueError for a text."""
    if isinstance(request.prompt, str):
        raise ValueError(f"prompt: got text ({request.prompt[:40]!r}), allowed: token ids")
    return request.prompt


def with_other_ids(requests: Iterable[SampleRequest], vocab_size: int, rng: random.Random) -> Iterator[SampleRequest]:
    """Yield the requests with all token ids replaced through one permutation, so that no prefix cache has seen them.

    Lengths, arrivals and common parts of prompts stay; texts are unchanged.
    """
    others = rng.sample(range(vocab_size), vocab_size)
    for request in requests:
        is_text = isinstance(request.prompt, str)
        yield request if is_text else replace(request, prompt=tuple(others[token] for token in token_ids(request)))
