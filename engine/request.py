"""One request on its way through the engine."""

import time
from dataclasses import dataclass, field
from enum import StrEnum

from engine.beam import Beam
from engine.errors import IllegalTransition
from engine.kv.block_table import BlockTable
from schemas.request import DEFAULT_TENANT
from schemas.sampling import SamplingParams
from schemas.seed import derived_seed
from schemas.stopping import FinishReason


class RequestState(StrEnum):
    """Orca's life cycle of a request (OSDI'22, section 4.1)."""

    WAITING = "waiting"
    """In the pool, holding no KV blocks: new, or preempted."""
    INITIATION = "initiation"
    """Its known tokens are being computed, in one chunk or several."""
    INCREMENT = "increment"
    """All tokens but the last one are cached; each iteration adds one."""
    FINISHED = "finished"
    """Ended, cancelled or failed; holds no KV blocks."""


@dataclass(slots=True)
class Timeline:
    """When a request changed its state, in seconds of `time.monotonic()`; None: not yet."""

    submitted_s: float | None = None
    scheduled_s: float | None = None
    """First admission to a batch."""
    first_token_s: float | None = None
    """First token of this engine; one that another engine generated earlier does not count."""
    finished_s: float | None = None
    chunks: list[tuple[float, int]] = field(default_factory=list)
    """When each chunk had been computed, and its tokens; those recomputed after a preemption among them."""
    preempted_s: list[float] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Request:
    """What to generate, and how far it is.

    `output_ids` given here are tokens that were generated elsewhere before: generation goes on behind them, and
    positions, `min_tokens` and `max_tokens` count them. `max_tokens` None: sampling.max_tokens, or what the context
    leaves. `seed` None: sampling.seed, or one derived from the id.

    What policies look at: `priority_class` (one of schemas.keys.CLASSES), `tenant`, the targets `ttft_slo_ms` and
    `tbt_slo_ms` (milliseconds; None: none), `deadline_s` (seconds of `time.monotonic()`). Cached prefixes are shared
    among requests of equal tenant and `cache_salt` alone. Requests of one `group` that are submitted with equal known
    tokens (the choices of one prompt) compute them once. With `beam` the request is a beam search.

    The state changes through the methods below alone; a change that cannot follow the present state raises
    IllegalTransition. How far a request is in its prefill follows from its state and `num_computed`, never from counts
    of tokens alone: after a preemption the outputs are recomputed like a prompt.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    output_ids: list[int] | tuple[int, ...] = ()
    seed: int | None = None
    priority_class: str = "normal"
    tenant: str = DEFAULT_TENANT
    cache_salt: str = ""
    ttft_slo_ms: float | None = None
    tbt_slo_ms: float | None = None
    deadline_s: float | None = None
    group: str | None = None
    beam: Beam | None = None

    state: RequestState = field(default=RequestState.WAITING, init=False)
    arrival: int = field(default=-1, init=False)
    """Rank of arrival; a preempted request keeps it."""
    tokens: list[int] = field(init=False, repr=False)
    """Prompt and outputs."""
    num_computed: int = field(default=0, init=False)
    """How many of `tokens`, from the start, have their keys and values in the cache."""
    table: BlockTable = field(init=False, repr=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    timeline: Timeline = field(default_factory=Timeline, init=False, repr=False)

    def __post_init__(self) -> None:
        self.prompt_ids = tuple(self.prompt_ids)
        self.output_ids = list(self.output_ids)
        self.tokens = [*self.prompt_ids, *self.output_ids]
        self.table = BlockTable()
        if self.max_tokens is None:
            self.max_tokens = self.sampling.max_tokens
        if self.seed is None:
            self.seed = derived_seed(self.id) if self.sampling.seed is None else self.sampling.seed

    @property
    def num_outputs(self) -> int:
        """Output tokens so far; the position of the next one."""
        return len(self.tokens) - len(self.prompt_ids)

    @property
    def num_uncomputed(self) -> int:
        """Known tokens that are not in the cache yet; at least 1 until the request is finished."""
        return len(self.tokens) - self.num_computed

    @property
    def most_tokens(self) -> int:
        """Most prompt and output tokens that the request can come to; `max_tokens` must be resolved."""
        if self.max_tokens is None:
            raise ValueError(f"max_tokens of request {self.id!r} is not resolved yet")
        return len(self.prompt_ids) + self.max_tokens

    def arrive(self, arrival: int) -> None:
        """Enter a pool: stamps the arrival."""
        if self.state is not RequestState.WAITING or self.arrival >= 0:
            raise IllegalTransition(f"request {self.id!r} was submitted before")
        self.arrival = arrival
        self.timeline.submitted_s = time.monotonic()

    def initiate(self) -> None:
        """WAITING → INITIATION: admitted to the batch."""
        self._move(RequestState.INITIATION, RequestState.WAITING)
        if self.timeline.scheduled_s is None:
            self.timeline.scheduled_s = time.monotonic()

    def advance(self, num_tokens: int) -> None:
        """`num_tokens` more known tokens are in the cache."""
        if self.state not in (RequestState.INITIATION, RequestState.INCREMENT) or num_tokens > self.num_uncomputed:
            raise IllegalTransition(
                f"request {self.id!r} ({self.state}) cannot advance by {num_tokens} of {self.num_uncomputed} tokens"
            )
        self.num_computed += num_tokens
        if self.state is RequestState.INITIATION:
            self.timeline.chunks.append((time.monotonic(), num_tokens))

    def append(self, token: int) -> None:
        """INITIATION or INCREMENT → INCREMENT: `token` was sampled behind the last known one."""
        if self.num_uncomputed:
            raise IllegalTransition(f"request {self.id!r} has {self.num_uncomputed} tokens to compute before the next")
        self._move(RequestState.INCREMENT, RequestState.INITIATION, RequestState.INCREMENT)
        self.tokens.append(token)
        self.output_ids.append(token)  # type: ignore[union-attr]  # a list since __post_init__
        if self.timeline.first_token_s is None:
            self.timeline.first_token_s = time.monotonic()

    def preempt(self) -> None:
        """INITIATION or INCREMENT → WAITING: everything known will be computed again. Its blocks must be free."""
        self._move(RequestState.WAITING, RequestState.INITIATION, RequestState.INCREMENT)
        self.num_computed = 0
        self.timeline.preempted_s.append(time.monotonic())

    def finish(self, reason: FinishReason | None) -> None:
        """Any other state → FINISHED; no reason: cancelled or failed. Its blocks must be free."""
        self._move(RequestState.FINISHED, RequestState.WAITING, RequestState.INITIATION, RequestState.INCREMENT)
        self.finish_reason = reason
        self.timeline.finished_s = time.monotonic()

    def _move(self, to: RequestState, *allowed: RequestState) -> None:
        if self.state not in allowed:
            raise IllegalTransition(f"request {self.id!r} cannot go from {self.state} to {to}")
        if to in (RequestState.WAITING, RequestState.FINISHED) and len(self.table):
            raise IllegalTransition(f"request {self.id!r} goes to {to} with {len(self.table)} blocks in its table")
        self.state = to
