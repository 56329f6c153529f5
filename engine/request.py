"""One request on its way through the engine."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from orcastream.engine.beam import Beam
from orcastream.engine.errors import IllegalTransition
from orcastream.engine.kv.digest import ContentChain
from orcastream.engine.kv.sequence import Sequence, SwappedSequence
from orcastream.engine.sampling.logit_changes import LogitChanges
from orcastream.schemas.request import DEFAULT_TENANT
from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.seed import derived_seed
from orcastream.schemas.stopping import FinishReason

if TYPE_CHECKING:  # whoever wants policies alone does not wait for torch
    from orcastream.engine.model.adapters.adapter import Adapter
    from orcastream.engine.sampling.masks import Matcher


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


INTERNAL = "\0"
"""In no id of a request that is submitted: the engine names with it what it makes of one."""


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

    An `id` is any text without INTERNAL, and that of no other unfinished request.

    What policies look at: `priority_class` (one of schemas.keys.CLASSES), `tenant`, the targets `ttft_slo_ms` and
    `tbt_slo_ms` (milliseconds; None: none), `deadline_s` (seconds of `time.monotonic()`), `waited_s` (seconds that it
    had waited before it was submitted). Cached prefixes are shared among requests of equal tenant and `cache_salt`
    alone, and of one `adapter`, which changes what the model computes for the request; None: nothing does. Requests of
    one `group` that are submitted with equal known tokens (the choices of one prompt) compute them once; they have one
    adapter. With `beam` the request is a beam search. With a `matcher`, which is new, its outputs follow that. With
    `prompt_logprobs` the log probability of each prompt token is told, and of so many likeliest ones in its place;
    those of the first `prompt_told` tokens were told elsewhere before.

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
    waited_s: float = 0.0
    group: str | None = None
    beam: Beam | None = None
    adapter: "Adapter | None" = None
    matcher: "Matcher | None" = field(default=None, repr=False)
    prompt_logprobs: int | None = None
    prompt_told: int = 0

    state: RequestState = field(default=RequestState.WAITING, init=False)
    arrival: int = field(default=-1, init=False)
    """Rank of arrival; a preempted request keeps it."""
    tokens: list[int] = field(init=False, repr=False)
    """Prompt and outputs."""
    num_computed: int = field(default=0, init=False)
    """How many tokens, from the start, have their keys and values in the cache, or will have when what is launched
    has run."""
    num_pending: int = field(default=0, init=False)
    """Tokens that a launched iteration will bring, behind `tokens`."""
    cached_tokens: int = field(default=0, init=False)
    """Prompt tokens that the prefix cache saved at the first admission."""
    chain: ContentChain = field(init=False, repr=False)
    """Names of the contents of its blocks."""
    kv: Sequence | None = field(default=None, init=False, repr=False)
    """What it holds in the cache while it runs."""
    swapped: SwappedSequence | None = field(default=None, init=False, repr=False)
    """What it holds in host memory while it waits to go on."""
    interrupted: RequestState = field(default=RequestState.WAITING, init=False, repr=False)
    """The state in which it was preempted last."""
    plannable: bool = field(default=True, init=False, repr=False)
    """Whether more can be computed before what is pending is known."""
    hypotheses: list["Request"] = field(default_factory=list, init=False, repr=False)
    """Of a beam search that has begun: its running hypotheses, one list for all of them; the request is the first."""
    candidates: list[tuple[int, float]] | None = field(default=None, init=False, repr=False)
    """Of a hypothesis: its likeliest next tokens, while it waits for the others."""
    changes: LogitChanges | None = field(default=None, init=False, repr=False)
    """What its penalties and biases do to its logits."""
    takes_best: bool = field(default=False, init=False, repr=False)
    """Whether its next token is simply the likeliest, always, and nothing more is asked for."""
    num_matched: int = field(default=0, init=False, repr=False)
    """Output tokens that its matcher has seen."""
    stop_ids: frozenset[int] = field(default=frozenset(), init=False, repr=False)
    """Tokens that end it; resolved when it is submitted."""
    followers: list["Request"] = field(default_factory=list, init=False, repr=False)
    """Requests of its group, whose known tokens it computes for them."""
    finish_reason: FinishReason | None = field(default=None, init=False)
    timeline: Timeline = field(default_factory=Timeline, init=False, repr=False)

    def __post_init__(self) -> None:
        self.prompt_ids = tuple(self.prompt_ids)
        self.output_ids = list(self.output_ids)
        self.tokens = [*self.prompt_ids, *self.output_ids]
        adapter = b"" if self.adapter is None else self.adapter.digest
        self.chain = ContentChain(self.tenant, self.cache_salt, adapter)
        if self.max_tokens is None:
            self.max_tokens = self.sampling.max_tokens
        params = self.sampling
        self.changes = LogitChanges.of(params, self.prompt_ids)
        self.takes_best = (
            self.changes is None
            and self.matcher is None
            and params.temperature == 0
            and params.logprobs is None
            and not params.min_tokens
            and self.beam is None
        )
        if self.seed is None:
            self.seed = derived_seed(self.id) if self.sampling.seed is None else self.sampling.seed

    @property
    def num_outputs(self) -> int:
        """Output tokens so far; the position of the next one."""
        return len(self.tokens) - len(self.prompt_ids)

    @property
    def num_uncomputed(self) -> int:
        """Tokens, known or about to be, that are not in the cache; 0 only while a hypothesis waits for the others."""
        return len(self.tokens) + self.num_pending - self.num_computed

    @property
    def tells_prompt(self) -> bool:
        """Whether log probabilities of its prompt are still to be told."""
        return self.prompt_logprobs is not None and self.prompt_told < len(self.prompt_ids)

    @property
    def num_matchable(self) -> int:
        """Known tokens that may be found in the cache, the last of which is computed in any case.

        Before a token whose log probability is to be told, all have to be computed.
        """
        return max(1, self.prompt_told) if self.tells_prompt else len(self.tokens)

    @property
    def places(self) -> int:
        """Places in the batch that it takes, for itself and for those that it will split into."""
        if self.beam is not None and not self.hypotheses:
            return self.beam.width
        return 1 + len(self.followers)

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

    def initiate(self, kv: Sequence, num_cached: int) -> None:
        """WAITING → INITIATION: admitted to the batch with `kv`, which holds the first `num_cached` tokens already."""
        self._move(RequestState.INITIATION, RequestState.WAITING)
        self.kv, self.num_computed = kv, num_cached
        if self.timeline.scheduled_s is None:
            self.timeline.scheduled_s = time.monotonic()
            self.cached_tokens = min(num_cached, len(self.prompt_ids))

    def resume(self, kv: Sequence) -> None:
        """WAITING → INITIATION or INCREMENT: back from host memory, where it was."""
        if self.swapped is None:
            raise IllegalTransition(f"request {self.id!r} was not swapped out")
        self._move(self.interrupted, RequestState.WAITING)
        self.kv, self.swapped = kv, None

    def launch(self, num_tokens: int) -> bool:
        """INITIATION or INCREMENT: `num_tokens` more tokens are being computed; whether one is sampled behind them."""
        # No property is asked here, nor in `append`: both run for every request of every iteration.
        left = len(self.tokens) + self.num_pending - self.num_computed - num_tokens
        if left < 0 or self.state not in (RequestState.INITIATION, RequestState.INCREMENT):
            raise IllegalTransition(
                f"request {self.id!r} ({self.state}) cannot compute {num_tokens} of {self.num_uncomputed} tokens"
            )
        self.num_computed += num_tokens
        if left:
            return False
        self.num_pending = pending = self.num_pending + 1
        self.state = RequestState.INCREMENT
        is_last = self.max_tokens is not None and len(self.tokens) - len(self.prompt_ids) + pending >= self.max_tokens
        self.plannable = not is_last and self.beam is None
        return True

    @staticmethod
    def launch_decodes(requests: Iterable["Request"]) -> None:
        """`launch(1)` of each of `requests` that has not ended and lacks that one token, as those that decode do."""
        # Written out: it runs for every request of every iteration.
        for request in requests:
            known = len(request.tokens) + request.num_pending
            if request.num_computed + 1 != known or request.state is not RequestState.INCREMENT:
                if request.state is not RequestState.FINISHED:
                    request.launch(1)
                continue
            request.num_computed = known
            request.num_pending += 1
            most = request.max_tokens
            request.plannable = (most is None or known + 1 < len(request.prompt_ids) + most) and request.beam is None

    def chunk_computed(self, num_tokens: int) -> None:
        """Stamp a chunk of a prefill that has been computed."""
        self.timeline.chunks.append((time.monotonic(), num_tokens))

    def append(self, token: int) -> None:
        """`token`, which was pending, is known."""
        if not self.num_pending:
            raise IllegalTransition(f"request {self.id!r} has {self.num_uncomputed} tokens to compute before the next")
        self.num_pending -= 1
        self.tokens.append(token)
        self.output_ids.append(token)  # type: ignore[union-attr]  # a list since __post_init__
        if self.timeline.first_token_s is None:
            self.timeline.first_token_s = time.monotonic()

    @staticmethod
    def append_each(requests: Iterable["Request"], tokens: Iterable[int]) -> None:
        """`append` to each of `requests` its one of `tokens`."""
        for request, token in zip(requests, tokens, strict=True):
            if not request.num_pending or request.timeline.first_token_s is None:
                request.append(token)
                continue
            request.num_pending -= 1
            request.tokens.append(token)
            request.output_ids.append(token)  # type: ignore[union-attr]  # as in `append`

    def consider(self, candidates: list[tuple[int, float]]) -> None:
        """Instead of the pending token come `candidates` for it: a hypothesis waits for the others now."""
        self.num_pending -= 1
        self.candidates = candidates

    def branch(self, kv: Sequence, tokens: list[int]) -> None:
        """Become the hypothesis of `tokens`, all but the last of which `kv` holds."""
        self.state = RequestState.INCREMENT
        self.kv, self.chain, self.num_computed = kv, kv.chain, len(tokens) - 1
        self.tokens, self.output_ids = tokens, tokens[len(self.prompt_ids) :]
        self.candidates, self.plannable = None, True

    def follow(self, leader: "Request", kv: Sequence) -> None:
        """WAITING → INCREMENT: `leader` computed what it knows; `kv` shares its blocks, and one token is pending."""
        self._move(RequestState.INCREMENT, RequestState.WAITING)
        self.kv, self.num_computed, self.num_pending = kv, len(self.tokens), 1
        self.chain = kv.chain
        self.cached_tokens = len(self.prompt_ids)
        self.timeline.scheduled_s = leader.timeline.scheduled_s

    def preempt(self, swapped: SwappedSequence | None = None) -> None:
        """INITIATION or INCREMENT → WAITING. What it held is in host memory, or will be computed again."""
        if self.num_pending:
            raise IllegalTransition(f"request {self.id!r} cannot be preempted: a token is pending")
        self.kv, self.swapped, self.interrupted = None, swapped, self.state
        self._move(RequestState.WAITING, RequestState.INITIATION, RequestState.INCREMENT)
        if self.candidates is not None:  # they come again with the last token, which is computed again
            self.candidates, self.plannable = None, True
            self.num_computed -= 1
        if swapped is None:
            self.num_computed = 0
        self.timeline.preempted_s.append(time.monotonic())

    def finish(self, reason: FinishReason | None) -> None:
        """Any other state → FINISHED; no reason: cancelled or failed. Its blocks must be free."""
        self._move(RequestState.FINISHED, RequestState.WAITING, RequestState.INITIATION, RequestState.INCREMENT)
        self.finish_reason, self.num_pending = reason, 0
        self.timeline.finished_s = time.monotonic()

    def _move(self, to: RequestState, *allowed: RequestState) -> None:
        if self.state not in allowed:
            raise IllegalTransition(f"request {self.id!r} cannot go from {self.state} to {to}")
        if to in (RequestState.WAITING, RequestState.FINISHED) and self.kv is not None:
            raise IllegalTransition(f"request {self.id!r} goes to {to} with blocks in the cache")
        self.state = to
