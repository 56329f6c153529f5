"""The results of an engine: events, completions and statistics."""

from dataclasses import dataclass
from typing import Any

from orcastream.schemas.stopping import FinishReason


@dataclass(slots=True)
class TokenEvent:
    """One output token of one request, or the error that ended it; immutable by convention.

    `position` is the token's position in the output, from 0; with `error` there is no token, and `position` is where it
    would have been. `logprobs`, if requested, is `[logprob of the token, [[token id, logprob], ...]]`, natural
    logarithms of the model's own distribution, before temperature, filters and min_tokens.
    `cached_tokens` counts the prompt tokens that the prefix cache saved. `choice` is 0 except in a beam search, whose
    events all come at its end, choice by choice, best first.
    """

    request_id: str
    position: int
    token: int | None
    finish_reason: FinishReason | None = None
    error: str | None = None
    logprobs: Any | None = None
    cached_tokens: int = 0
    choice: int = 0


@dataclass(frozen=True, slots=True)
class PromptEvent:
    """Log probabilities of consecutive prompt tokens of one request, the first of which is at `position`.

    Each token has one item, as in `TokenEvent.logprobs`, and one rank: one more than the number of tokens with a higher
    log probability. Both are None for the first token of the prompt, which follows nothing. Tokens come in order, each
    once, and all before the first output token.
    """

    request_id: str
    position: int
    logprobs: tuple[Any, ...]
    ranks: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """One whole output for a prompt of `OrcaEngine.generate`."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    error: str | None = None
    logprobs: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot: current gauges, and totals since the engine was loaded."""

    blocks_used: int
    """Blocks that running requests hold."""
    blocks_total: int
    blocks_reusable: int
    """Free blocks that keep a prefix until they are needed."""
    slots_held: int
    """Token slots in held or reserved blocks."""
    slots_used: int
    """Token slots that hold a token."""
    running: int
    waiting: int
    preemptions: int
    swaps: int
    """Preemptions that moved blocks to host memory instead of dropping them."""
    iterations: int
    prompt_tokens: int
    """Prompt tokens computed, including those recomputed after a preemption."""
    cached_tokens: int
    """Prompt tokens that need not be computed: their blocks were cached, or shared among choices of one prompt."""
    queried_tokens: int
    """Prompt tokens of all admissions: the denominator for `cached_tokens`."""
    output_tokens: int
    batched_tokens: int
    """Tokens of the last iteration."""
