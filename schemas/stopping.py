"""When a choice is finished: one rule for the engine and for every reader that continues from a reply log."""

from collections.abc import Collection, Sequence
from enum import StrEnum

from orcastream.schemas.sampling import SamplingParams


class FinishReason(StrEnum):
    """Why a choice ended without an error."""

    STOP = "stop"
    """EOS, a stop token or a stop string."""
    LENGTH = "length"
    """max_tokens reached, or the context is full."""


def finish_reason(
    token: int, num_tokens: int, sampling: SamplingParams, eos_token_ids: Collection[int], max_tokens: int
) -> FinishReason | None:
    """Return the reason to stop after `token`, the choice's `num_tokens`-th output token (1-based); None to continue.

    `max_tokens` is the resolved bound: sampling.max_tokens, or what the context leaves.
    """
    stops = token in sampling.stop_token_ids or (token in eos_token_ids and not sampling.ignore_eos)
    if stops and num_tokens >= sampling.min_tokens:
        return FinishReason.STOP
    return FinishReason.LENGTH if num_tokens >= max_tokens else None


def stop_ids(sampling: SamplingParams, eos_token_ids: Collection[int]) -> frozenset[int]:
    """Return the tokens that can end a choice."""
    return frozenset(sampling.stop_token_ids).union(() if sampling.ignore_eos else eos_token_ids)


def first_finish(
    tokens: Sequence[int], sampling: SamplingParams, eos_token_ids: Collection[int], max_tokens: int
) -> tuple[int, FinishReason] | None:
    """Return how many of `tokens` (a choice's output from its start) count and why it ended; None if it continues."""
    for num_tokens, token in enumerate(tokens, start=1):
        reason = finish_reason(token, num_tokens, sampling, eos_token_ids, max_tokens)
        if reason is not None:
            return num_tokens, reason
    return None
